// Computes the status of objects as Flux and Helm do: reads a list of objects (kubectl get -o json) from standard input,
// and prints one line "KIND/NAME STATUS" for each.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var list unstructured.UnstructuredList
	if err := json.NewDecoder(os.Stdin).Decode(&list); err != nil {
		return err
	}
	for _, object := range list.Items {
		result, err := status.Compute(&object)
		if err != nil {
			return fmt.Errorf("%s/%s: %w", object.GetKind(), object.GetName(), err)
		}
		fmt.Printf("%s/%s %s\n", object.GetKind(), object.GetName(), result.Status)
	}
	return nil
}
