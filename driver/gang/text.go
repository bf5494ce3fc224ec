// SPDX-License-Identifier: MPL-2.0

package gang

import (
	"strings"
	"unicode/utf8"
)

// shorten cuts a text to at most n bytes, at a rune's border, and takes out
// what would break a line or a terminal.
func shorten(s string, n int) string {
	if len(s) > 4*n {
		s = s[:4*n]
	}
	s = strings.ToValidUTF8(s, "?")
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
	if len(s) <= n {
		return s
	}
	cut := max(n-len("…"), 0)
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

func boundTail(lines []string) []string {
	const most, width = 20, 300
	lines = lines[max(0, len(lines)-most):]
	bounded := make([]string, len(lines))
	for i, l := range lines {
		bounded[i] = shorten(l, width)
	}
	return bounded
}
