// Command caddy is Caddy with the modules that a reverse proxy needs. It ends when its standard input does, see
// ../controlplane.
//
// It opens the addresses in $OPERATING_LISTEN, which are separated by commas, as the file descriptors from 10. Caddy
// serves them as fd/10, fd/11 and so on. Each time its configuration changes, Caddy closes its listeners and opens new
// ones; connections that wait in a closed listener are lost. A listener that Caddy got as a file descriptor is only
// closed once, at the end of the process.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
)

func main() {
	if os.Getenv("OPERATING_PLANE_STDIN") == "watch" {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(1)
		}()
	}
	if err := listen(os.Getenv("OPERATING_LISTEN")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	caddycmd.Main()
}

const firstDescriptor = 10

func listen(addresses string) error {
	if addresses == "" {
		return nil
	}
	for i, address := range strings.Split(addresses, ",") {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		file, err := listener.(*net.TCPListener).File()
		if err != nil {
			return err
		}
		if err := syscall.Dup3(int(file.Fd()), firstDescriptor+i, syscall.O_CLOEXEC); err != nil {
			return err
		}
		_ = file.Close()
		_ = listener.Close()
	}
	return nil
}
