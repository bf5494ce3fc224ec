// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/consul/consultest"
)

func TestACommandRunsBesideTheRunningGenerationAndNotBefore(t *testing.T) {
	n := startNode(t, consultest.Start(t), "")
	_, err := n.ExecTask("no such task", []string{"true"}, time.Second)
	must.ErrorIs(t, err, drivers.ErrTaskNotFound)
	first := n.task(0, 2, "echo gang $GANG_GENERATION runs >> $OUT; exec sleep 1000")
	n.start(first)
	_, err = n.ExecTask(first.ID, []string{"true"}, time.Second)
	must.EqError(t, err, "exec: the gang has not formed, no process runs yet")
	n.start(n.task(1, 2, "exec sleep 1000"))
	n.out("gang 1 runs")

	r, err := n.ExecTask(first.ID, []string{"sh", "-c", "echo rank $NODE_RANK of $NUM_NODES; echo oh >&2; exit 3"}, time.Minute)
	must.NoError(t, err)
	must.Eq(t, &drivers.ExecTaskResult{Stdout: []byte("rank 0 of 2\n"), Stderr: []byte("oh\n"), ExitResult: &drivers.ExitResult{ExitCode: 3}}, r)
	_, err = n.ExecTask(first.ID, []string{"sleep", "1000"}, 100*time.Millisecond)
	must.ErrorIs(t, err, context.DeadlineExceeded)
	must.StrHasPrefix(t, `exec: ["sleep" "1000"] did not end within 100ms`, err.Error())
	_, err = n.ExecTask(first.ID, nil, time.Second)
	must.ErrorContains(t, err, `command: ""`)
	r, err = n.ExecTask(first.ID, []string{"sh", "-c", "head -c 10000000 /dev/zero; echo the end"}, 0)
	must.NoError(t, err)
	must.Eq(t, keptOutput, len(r.Stdout), must.Sprint("a check can fill the memory"))
	must.StrHasSuffix(t, "the end\n", string(r.Stdout))
}

// keyboard is an input that tells when it is closed.
type keyboard struct {
	io.Reader
	closed chan struct{}
}

func (k *keyboard) Close() error {
	close(k.closed)
	return nil
}

// paper is an output that is no more than written on.
type paper struct{ bytes.Buffer }

func (*paper) Close() error { return nil }

func TestATerminalsInputIsOpenUntilNomadIsDone(t *testing.T) {
	n := startNode(t, consultest.Start(t), "")
	cfg := n.task(0, 1, "echo runs >> $OUT; exec sleep 1000")
	n.start(cfg)
	n.out("runs")
	ctx, cancel := context.WithCancel(t.Context())
	keys, pressed := io.Pipe()
	in := &keyboard{keys, make(chan struct{})}
	sizes := make(chan drivers.TerminalSize, 1)
	sizes <- drivers.TerminalSize{Height: 33, Width: 44}
	out := &paper{}
	go fmt.Fprint(pressed, "until [ \"$(stty size)\" = '33 44' ]; do sleep 0.05; done; exit 9\n")
	r, err := n.ExecTaskStreaming(ctx, cfg.ID, &drivers.ExecOptions{Command: []string{"sh"}, Tty: true, Stdin: in, Stdout: out, Stderr: &paper{}, ResizeCh: sizes})
	must.NoError(t, err)
	must.Eq(t, &drivers.ExitResult{ExitCode: 9}, r)
	must.StrContains(t, strings.TrimSpace(out.String()), "exit 9")
	select {
	case <-in.closed:
		t.Fatal("a key that is pressed now fails")
	default:
	}
	cancel()
	<-in.closed
}
