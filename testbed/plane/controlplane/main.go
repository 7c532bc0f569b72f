// Command controlplane is a whole Kubernetes control plane, and kubectl, in one binary.
//
// The component is the name the binary is called by, or else the first argument:
//
//	controlplane kube-apiserver --help
//	ln -s controlplane kubectl; ./kubectl get nodes
//
// With OPERATING_PLANE_STDIN=watch a component ends when its standard input does. Whoever
// starts it holds the other end of that pipe, so a starter that dies, however it dies, takes
// the component with it. `controlplane supervise COMMAND…` gives a foreign program the same
// property.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

const usage = "usage: controlplane etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kubectl|supervise ..."

func main() {
	name := filepath.Base(os.Args[0])
	if _, known := components[name]; !known && len(os.Args) > 1 {
		name = os.Args[1]
		os.Args = append([]string{name}, os.Args[2:]...)
	}
	run, known := components[name]
	if !known {
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
	if os.Getenv("OPERATING_PLANE_STDIN") == "watch" && name != "supervise" && name != "kubectl" {
		go func() {
			waitForEOF(os.Stdin)
			os.Exit(1)
		}()
	}
	os.Exit(run())
}

var components = map[string]func() int{
	"etcd": func() int {
		etcdmain.Main(os.Args)
		return 0
	},
	"kube-apiserver":          func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() int { return cli.Run(controllermanager.NewControllerManagerCommand()) },
	"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
	"kubectl": func() int {
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			kubectlutil.CheckErr(err) // prints the error as kubectl does and exits
		}
		return 0
	},
	"supervise": supervise,
}
