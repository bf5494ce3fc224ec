// SPDX-License-Identifier: MPL-2.0

package preflight

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// named is how many peers an error names in full.
const named = 3

// names lists ranks for people, some of them in full.
func (x *exchange) names(ranks []int) string {
	var parts []string
	for _, rank := range ranks[:min(len(ranks), named)] {
		parts = append(parts, describe(x.a.Members, rank))
	}
	if len(ranks) > named {
		parts = append(parts, fmt.Sprintf("and %d more (ranks %s)", len(ranks)-named, rankList(ranks[named:])))
	}
	return strings.Join(parts, ", ")
}

// unreached says which calls did not work, in either direction: nil where all did.
func (x *exchange) unreached(failed map[int]error) error {
	silent := map[int]bool{} // who never called
	for _, k := range []kind{hello, flow, tell} {
		for _, rank := range x.callers(k) {
			silent[rank] = true
		}
	}
	if len(failed) == 0 && len(silent) == 0 {
		return nil
	}
	var ranks []int
	for rank := range failed {
		ranks = append(ranks, rank)
	}
	for rank := range silent {
		if failed[rank] == nil {
			ranks = append(ranks, rank)
		}
	}
	slices.Sort(ranks)
	var errs []error
	if others := len(x.plan.calls); others > 1 && len(failed) == others {
		errs = append(errs, fmt.Errorf("%s reaches none of the %d members it called, so look at this node first", describe(x.a.Members, x.a.Rank), others))
	}
	for _, rank := range ranks[:min(len(ranks), named)] {
		errs = append(errs, x.fault(rank, failed[rank], silent[rank]))
	}
	if len(ranks) > named {
		errs = append(errs, fmt.Errorf("and %d more (ranks %s)", len(ranks)-named, rankList(ranks[named:])))
	}
	return oneLine(errs)
}

func (x *exchange) fault(rank int, out error, silent bool) error {
	who := describe(x.a.Members, rank)
	switch {
	case out == nil:
		return fmt.Errorf("%s answers, but its own calls do not come here to %s: a firewall may drop them, or its route leads elsewhere", who, x.address(x.a.Rank))
	case !silent && slices.Contains(x.plan.called, rank):
		return fmt.Errorf("%s calls, but cannot be called: %s", who, because(out, x.address(rank)))
	}
	return fmt.Errorf("%s is not reached: %s", who, because(out, x.address(rank)))
}

// oneLine joins errors as a task's event shows them.
func oneLine(errs []error) error {
	var texts []string
	for _, err := range errs {
		texts = append(texts, err.Error())
	}
	return errors.New(strings.Join(texts, "; "))
}
