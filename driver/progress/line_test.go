// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"strings"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func TestALineIsAStepWithItsTimeOrNot(t *testing.T) {
	for text, want := range map[string]Line{
		"120":                             {Step: 120},
		" 120 0.81\r":                     {Step: 120, Seconds: 0.81},
		"0\t1e-3":                         {Seconds: 0.001},
		`{"step": 7}`:                     {Step: 7},
		`{"step":7,"seconds":2,"loss":1}`: {Step: 7, Seconds: 2},
	} {
		got, err := ParseLine([]byte(text))
		must.NoError(t, err, must.Sprint(text))
		must.Eq(t, want, got)
	}
	for text, want := range map[string]string{
		"":                          "a line of 0 bytes; allowed are 1 to 256",
		strings.Repeat("1", 257):    "a line of 257 bytes",
		"1 2 3":                     "a line of 3 words; allowed are `step` and `step seconds`",
		"root:x:0":                  "does not begin with a number",
		"1 fast":                    "second word is no number",
		"-1":                        "step -1; allowed are whole numbers",
		"1.5":                       "step 1.5;",
		"NaN":                       "step NaN;",
		"1e99":                      "step 1e+99;",
		"1 -1":                      "seconds -1; allowed are 0 to 86400",
		"1 1733066000.5":            "seconds 1.7330660005e+09; allowed are 0 to 86400: the time that the step took, not a point in time",
		"1 Inf":                     "seconds +Inf",
		`{"step"`:                   `no JSON object with the number "step"`,
		`{"seconds":1}`:             `no JSON object with the number "step"`,
		`{"step":"secret"}`:         `no JSON object with the number "step"`,
		`{"step":3,"seconds":1e10}`: "seconds 1e+10",
	} {
		_, err := ParseLine([]byte(text))
		must.ErrorContains(t, err, want)
		must.StrNotContains(t, err.Error(), "root")
		must.StrNotContains(t, err.Error(), "secret")
	}
}

func TestTheNewestLineThatIsWholeCounts(t *testing.T) {
	for text, want := range map[string]string{
		"1\n2\n3\n": "3", "1\n2\n3": "2", "12": "12", "12\n": "12", "1\n\n\n": "1", "\n": "", "": "", "1\r\n2\r\n": "2",
	} {
		must.Eq(t, want, string(lastLine([]byte(text))), must.Sprintf("%q", text))
	}
}

func TestWhateverStandsInALineOneReadsNothingImpossible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		line, err := ParseLine(rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "line"))
		if err == nil && (line.Step > maxStep || !(line.Seconds >= 0 && line.Seconds <= maxSeconds)) {
			t.Fatalf("%+v", line)
		}
	})
}
