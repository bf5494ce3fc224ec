// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"testing"

	"github.com/shoenig/test/must"
)

func TestCoresAndDiskAreSharedOutWhereANodeTellsThem(t *testing.T) {
	node := Shape{GPUs: 8, CPU: 8000, Memory: 1000, Host: &Host{Cores: 6, MHz: 1000, Disk: 900}}
	for name, c := range map[string]struct {
		request Shape
		each    int
	}{
		"cores":                     {Shape{GPUs: 1, Host: &Host{Cores: 2, Charged: 2}}, 3},
		"more cores than there are": {Shape{GPUs: 1, Host: &Host{Cores: 7, Charged: 7}}, 0},
		"cores that take the MHz":   {Shape{GPUs: 1, CPU: 2000, Host: &Host{Cores: 2, Charged: 2}}, 2},
		"cores one after the other": {Shape{GPUs: 1, CPU: 2000, Host: &Host{Cores: 2, Charged: 1}}, 2},
		"disk":                      {Shape{GPUs: 1, Host: &Host{Disk: 450}}, 2},
		"more disk than there is":   {Shape{GPUs: 1, Host: &Host{Disk: 901}}, 0},
		"neither":                   {Shape{GPUs: 1}, 8},
	} {
		must.Eq(t, c.each, perNode(c.request, node), must.Sprint(name))
		must.Eq(t, c.each > 0, fits(c.request, node), must.Sprint(name))
		left, placed := node, 0
		for ; fits(c.request, left); placed++ {
			take(c.request, &left)
		}
		must.Eq(t, c.each, placed, must.Sprint(name))
	}
	must.Eq(t, 6, node.Host.Cores, must.Sprint("what it was taken of is a copy"))
	pool := Shape{GPUs: 8, CPU: 8000, Memory: 1000}
	must.Eq(t, 4, perNode(Shape{GPUs: 2, Host: &Host{Cores: 96, Charged: 96, Disk: 1 << 40}}, pool), must.Sprint("a pool does not tell them"))
	must.Eq(t, &Host{Cores: 3, Charged: 2, Disk: 5}, add(Shape{Host: &Host{Cores: 1, Charged: 1, Disk: 5}}, Shape{Host: &Host{Cores: 2, Charged: 1}}).Host)
}
