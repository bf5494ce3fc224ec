// SPDX-License-Identifier: MPL-2.0

package process

import (
	"bytes"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func TestEachLineGetsThePrefixOnce(t *testing.T) {
	long := strings.Repeat("x", lineWidth)
	for name, c := range map[string]struct {
		in   []string // as it comes from the process
		want string
	}{
		"lines":                         {[]string{"a\nb\n"}, "> a\n> b\n"},
		"a line in parts":               {[]string{"a", "b", "\n", "c\n"}, "> ab\n> c\n"},
		"an end without a newline":      {[]string{"a\nb"}, "> a\n> b\n"},
		"empty lines":                   {[]string{"\n\n"}, "> \n> \n"},
		"nothing":                       {[]string{"", ""}, ""},
		"bytes that are no text":        {[]string{"\x00\xff\r\x1b[0m\n"}, "> \x00\xff\r\x1b[0m\n"},
		"a line that just fits":         {[]string{long + "\n"}, "> " + long + "\n"},
		"its newline comes later":       {[]string{long, "\n"}, "> " + long + "\n"},
		"a line that is too long":       {[]string{long + "yz\nb\n"}, "> " + long + "\n> yz\n> b\n"},
		"a line that is far too long":   {[]string{long + long, long + "\n"}, "> " + long + "\n> " + long + "\n> " + long + "\n"},
		"a long line without a newline": {[]string{long + "y"}, "> " + long + "\n> y\n"},
	} {
		t.Run(name, func(t *testing.T) {
			p := prefixer{prefix: []byte("> ")}
			var got []byte
			for _, data := range c.in {
				got = append(got, p.add([]byte(data))...)
			}
			must.Eq(t, c.want, string(append(got, p.flush()...)))
			must.False(t, p.waiting())
		})
	}
}

func TestPrefixesDoNotDependOnHowTheOutputIsCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Few different bytes, many of them, so that newlines and long lines come.
		var data []byte
		for _, n := range rapid.SliceOfN(rapid.IntRange(0, 2*lineWidth), 0, 6).Draw(t, "lines") {
			data = append(append(data, bytes.Repeat([]byte{'x'}, n)...), '\n')
		}
		data = append(data, rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "rest")...)
		whole, cut := prefixer{prefix: []byte("> ")}, prefixer{prefix: []byte("> ")}
		want := append(whole.add(data), whole.flush()...)
		var got []byte
		for rest := data; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "n")
			got = append(got, cut.add(rest[:n])...)
			rest = rest[n:]
		}
		got = append(got, cut.flush()...)
		must.True(t, bytes.Equal(want, got), must.Sprintf("%d bytes, want %d", len(got), len(want)))
		for line := range bytes.Lines(got) {
			must.LessEq(t, len("> ")+lineWidth+1, len(line))
			must.True(t, bytes.HasPrefix(line, []byte("> ")))
		}
	})
}
