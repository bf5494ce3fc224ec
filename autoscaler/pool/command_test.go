// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// program is a shell script as the user's program would be; it keeps what it was asked.
func program(t *testing.T, script string) (argv []string, asked func() string) {
	dir := t.TempDir()
	path := filepath.Join(dir, "program")
	must.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\ncat > "+filepath.Join(dir, "asked")+"\n"+script+"\n"), 0o700))
	return []string{path, "an argument; $HOME"}, func() string {
		data, err := os.ReadFile(filepath.Join(dir, "asked"))
		must.NoError(t, err)
		return string(data)
	}
}

func makerOf(argv []string) commandMaker {
	return commandMaker{"h100", &Command{Create: argv, List: argv, Destroy: argv, timeout: 20 * time.Second}}
}

func TestAProgramIsAskedInJSONAndAnswersInJSON(t *testing.T) {
	argv, asked := program(t, `echo '{"machines":[{"id":"i-1","node":"n1"},{"id":"i-2","address":"10.0.0.2","interrupted":true}]}'`)
	m := makerOf(argv)
	machines, refused, err := m.List(t.Context())
	must.NoError(t, err)
	must.Eq(t, "", refused)
	must.Eq(t, []Machine{{ID: "i-1", Node: "n1"}, {ID: "i-2", Address: "10.0.0.2", Interrupted: true}}, machines)
	must.Eq(t, `{"action":"list","pool":"h100"}`, asked())
	empty, _ := program(t, `echo '{"machines": []}'`)
	machines, _, err = makerOf(empty).List(t.Context())
	must.NoError(t, err)
	must.SliceEmpty(t, machines)
	must.NoError(t, m.Create(t.Context(), "tok", 3))
	must.Eq(t, `{"action":"create","pool":"h100","count":3,"token":"tok"}`, asked())
	must.NoError(t, m.Destroy(t.Context(), []string{"i-1"}))
	must.Eq(t, `{"action":"destroy","pool":"h100","ids":["i-1"]}`, asked())
}

func TestNoShellIsBetweenAPoolAndItsProgram(t *testing.T) {
	argv, _ := program(t, `printf '{"machines":[{"id":"%s"}]}' "$1"`)
	machines, _, err := makerOf(argv).List(t.Context())
	must.NoError(t, err)
	must.Eq(t, "an argument; $HOME", machines[0].ID)
}

func TestEachFaultOfAProgramIsNamed(t *testing.T) {
	cases := map[string]struct{ script, want string }{
		"a failure":              {"echo first >&2; echo 'no credentials' >&2; exit 3", "list: exit status 3: no credentials"},
		"a failure in JSON":      {`echo '{"error":{"code":"failed","message":"zone?"}}'; exit 1`, ": zone?"},
		"no JSON":                {"echo hello", "list: its answer: invalid character"},
		"an unknown field":       {`echo '{"machine":[]}'`, `unknown field "machine"`},
		"more than one object":   {`echo '{} {}'`, "there is more after the JSON object"},
		"no id":                  {`echo '{"machines":[{"id":"a"},{"node":"n"}]}'`, `machines[1].id: ""; allowed is a text`},
		"an id twice":            {`echo '{"machines":[{"id":"a"},{"id":"a"}]}'`, `machines[1].id: "a"; allowed is a text of up to 256 bytes that no other machine has`},
		"an unknown error code":  {`echo '{"error":{"code":"bad"}}'`, `error.code: "bad"; allowed are "capacity", "quota" and "failed"`},
		"nothing":                {"true", `list: it wrote no machines; allowed is {"machines": []} where there are none`},
		"an empty object":        {"echo '{}'", "list: it wrote no machines"},
		"machines that are null": {`echo '{"machines":null}'`, "list: it wrote no machines"},
		"too much":               {"head -c 2000000 /dev/zero", "it wrote more than 1048576 bytes"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			argv, _ := program(t, c.script)
			_, _, err := makerOf(argv).List(t.Context())
			must.ErrorContains(t, err, "program "+argv[0])
			must.ErrorContains(t, err, c.want)
		})
	}
	_, _, err := makerOf([]string{"/no/such/program"}).List(t.Context())
	must.ErrorContains(t, err, "program /no/such/program: list: ")
}

func TestWhatAProgramSaysItHasNotMadeIsARefusal(t *testing.T) {
	for _, code := range []string{"capacity", "quota", "failed"} {
		argv, _ := program(t, `echo '{"error":{"code":"`+code+`","message":"try later"}}'`)
		err := makerOf(argv).Create(t.Context(), "t", 1)
		var refused *RefusedError
		must.True(t, errors.As(err, &refused))
		must.Eq(t, code+": try later", refused.Reason)
	}
	argv, _ := program(t, "echo 'no credentials' >&2; exit 3")
	var refused *RefusedError
	must.False(t, errors.As(makerOf(argv).Create(t.Context(), "t", 1), &refused), must.Sprint("it may have made them before it failed"))
}

func TestAProgramThatDoesNotEndIsEndedWithAllItStarted(t *testing.T) {
	argv, _ := program(t, "sleep 1000 & sleep 1000")
	m := makerOf(argv)
	m.command.timeout = 50 * time.Millisecond
	_, _, err := m.List(t.Context())
	must.ErrorContains(t, err, "it was ended after 50ms (command.timeout)")
}

func TestACommandPoolIsChecked(t *testing.T) {
	text := strings.NewReplacer(`"local"`, `"command"`, good[strings.Index(good, "  local {"):], `  command {
    dir     = "/var/lib/pool"
    create  = ["gpu-nodes", "create"]
    list    = ["gpu-nodes", "list"]
    destroy = ["gpu-nodes", "destroy"]
    timeout = "90s"
  }
}
`).Replace(good)
	f, err := readText(t, text)
	must.NoError(t, err)
	must.Eq(t, 90*time.Second, f.Pools[0].Command.timeout)
	for name, c := range map[string]struct{ old, new, want string }{
		"no program":          {`["gpu-nodes", "list"]`, `[]`, "command.list: empty"},
		"relative directory":  {`"/var/lib/pool"`, `"pool"`, `command.dir: "pool"`},
		"no time":             {`"90s"`, `"0s"`, `command.timeout: "0s"; allowed is a duration above 0`},
		"no end":              {`"90s"`, `"100h"`, `command.timeout: "100h"; allowed is a duration above 0 and up to 1h0m0s`},
		"another kind":        {`kind      = "command"`, `kind = "target"`, `command: a block; allowed is one only with kind "command"`},
		"no block":            {text[strings.Index(text, "  command {"):], "}\n", `command: no block; kind "command" needs one`},
		"retry after":         {`max `, `retry_after = "x"` + "\n  max ", `retry_after: "x"`},
		"a name with a slash": {`pool "spot"`, `pool "../spot"`, `name: "../spot"`},
	} {
		t.Run(name, func(t *testing.T) {
			must.StrContains(t, text, c.old)
			_, err := readText(t, strings.Replace(text, c.old, c.new, 1))
			must.ErrorContains(t, err, c.want)
		})
	}
}
