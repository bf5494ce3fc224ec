// SPDX-License-Identifier: MPL-2.0

// Package rights says what Nomad's ACLs must let a token do, in the words of
// its policies.
package rights

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/hashicorp/nomad/acl"
	"github.com/hashicorp/nomad/api"
)

// Rights that are needed.
const (
	ReadJobs   = `namespace "*" { capabilities = ["read-job"] }`
	ReadNodes  = `node { policy = "read" }`
	WriteNodes = `node { policy = "write" }`
)

// Explain adds to a refusal of Nomad the right that its token lacks. It
// returns any other error as it is.
func Explain(err error, right string) error {
	var answer api.UnexpectedResponseError
	if errors.As(err, &answer) && answer.StatusCode() == http.StatusForbidden {
		return fmt.Errorf("%w; the token lacks %s", err, right)
	}
	return err
}

// SeesAllJobs returns an error where a client's token is known to hide work:
// Nomad leaves out what a token may not see, so that a node which is busy for
// others looks empty. A token whose policies cannot be asked for (a workload's
// identity) is taken to have them.
func SeesAllJobs(ctx context.Context, client *api.Client) error {
	query := (&api.QueryOptions{}).WithContext(ctx)
	token, _, err := client.ACLTokens().Self(query)
	if err != nil || token.Type == "management" {
		return ctx.Err() // an error without ACLs too
	}
	stubs, _, err := client.ACLPolicies().List(query) // a token's own, those of its roles included
	if err != nil {
		return ctx.Err()
	}
	var policies []*acl.Policy
	for _, stub := range stubs {
		full, _, err := client.ACLPolicies().Info(stub.Name, query)
		if err != nil {
			return ctx.Err()
		}
		parsed, err := acl.Parse(full.Rules)
		if err != nil {
			return nil
		}
		policies = append(policies, parsed)
	}
	all, err := acl.NewACL(false, policies)
	if err != nil {
		return nil
	}
	// A namespace that no policy names, and each that one does.
	namespaces := []string{"\x00"}
	for _, p := range policies {
		for _, n := range p.Namespaces {
			namespaces = append(namespaces, n.Name)
		}
	}
	for _, n := range namespaces {
		if !all.AllowNsOp(n, acl.NamespaceCapabilityReadJob) {
			if n == "\x00" {
				return fmt.Errorf("the token does not see the jobs of all namespaces; it lacks %s", ReadJobs)
			}
			return fmt.Errorf("the token does not see the jobs of namespace %q; it lacks %s", n, ReadJobs)
		}
	}
	return nil
}
