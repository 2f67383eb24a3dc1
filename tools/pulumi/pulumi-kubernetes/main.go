// The Kubernetes provider of Pulumi, as its own main starts it. That one embeds files that its build generates, which
// are not part of the module; here the builder lays the module's own files beside this one.
package main

import (
	_ "embed"
	"strings"

	"github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/provider"
	"github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/version"
)

//go:embed schema.json
var schema string

//go:embed terraform-mapping.json
var mapping []byte

func main() {
	// The released schema has its version; the one in the repository has none.
	versioned := strings.Replace(schema, "{", `{"version": "`+version.Version+`",`, 1)
	provider.Serve("kubernetes", version.Version, []byte(versioned), mapping)
}
