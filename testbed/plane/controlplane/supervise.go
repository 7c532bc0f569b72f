package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// waitForEOF returns when nothing more can be read from r: its last writer is gone.
func waitForEOF(r io.Reader) {
	_, _ = io.Copy(io.Discard, r)
}

// supervise runs the command in os.Args[1:] and kills it when standard input ends. SIGTERM and
// SIGINT are passed on; the exit code is the command's own.
func supervise() int {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, usage)
		return 2
	}
	child := exec.Command(os.Args[1], os.Args[2:]...)
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	// Registered before the start: a signal that comes between the two is kept, not fatal.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	if err := child.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 127
	}
	go func() {
		waitForEOF(os.Stdin)
		_ = child.Process.Kill()
	}()
	go func() {
		for s := range signals {
			_ = child.Process.Signal(s)
		}
	}()
	_ = child.Wait()
	if code := child.ProcessState.ExitCode(); code >= 0 {
		return code
	}
	return 137
}
