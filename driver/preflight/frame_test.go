// SPDX-License-Identifier: MPL-2.0

package preflight

import (
	"bytes"
	"io"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func TestAFrameComesBackAsItWasSent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := frame{kind: kind(rapid.Byte().Draw(t, "kind")), from: rapid.IntRange(0, 1<<20).Draw(t, "from"), to: rapid.IntRange(0, 1<<20).Draw(t, "to"),
			generation: rapid.Uint64().Draw(t, "generation"), payload: rapid.SliceOfN(rapid.Byte(), 0, maxPayload).Draw(t, "payload")}
		copy(f.view[:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "view"))
		data := f.encode()
		got, err := readFrame(bytes.NewReader(data))
		must.NoError(t, err)
		must.Eq(t, f, got)
		_, err = readFrame(bytes.NewReader(data[:rapid.IntRange(0, len(data)-1).Draw(t, "cut")]))
		must.Error(t, err)
	})
}

func TestWhateverArrivesIsBoundedAndTheReasonTold(t *testing.T) {
	long := frame{kind: hello, payload: make([]byte, maxPayload+1)}.encode()
	newer := frame{kind: hello}.encode()
	newer[4] = 9
	for _, c := range []struct {
		name string
		data []byte
		want string
	}{
		{"HTTP", []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), errStranger.Error()},
		{"a long stranger", bytes.Repeat([]byte("x"), 4096), errStranger.Error()},
		{"a long payload", long, "payload: 4097 bytes; allowed are 4096"},
		{"a newer release", newer, "the preflight's version is 9 there, 1 here"},
		{"nothing", nil, io.EOF.Error()},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := readFrame(bytes.NewReader(c.data))
			must.EqError(t, err, c.want)
		})
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add(frame{kind: hello, payload: []byte(`{"nvidia":"1"}`)}.encode())
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := readFrame(bytes.NewReader(data))
		if err == nil && !bytes.HasPrefix(data, got.encode()) {
			t.Fatalf("%x was read as %+v", data, got)
		}
	})
}
