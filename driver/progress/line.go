// SPDX-License-Identifier: MPL-2.0

// Package progress follows a training by the step that it writes into a file:
// which rank is slow against the others, and when the training hangs.
//
// A file holds lines, the newest last, or one line that is written over. A
// line is `step` or `step seconds`, or the same as JSON,
// `{"step": 120, "seconds": 0.81}`. Seconds is the time that this rank's own
// work of the step took, without the wait for the others: ranks that step
// together are all as slow as the slowest, so only their own work tells which
// it is. Without it the time between steps is taken.
package progress

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Line is what one line says.
type Line struct {
	Step uint64
	// Seconds is the rank's own work of the step; 0: not told.
	Seconds float64
}

const (
	// maxLine is the longest line, and maxStep the highest step, that are taken.
	maxLine = 256
	maxStep = 1 << 53 // what JSON's numbers carry exactly
	// maxSeconds is a day: a number above it is a point in time by mistake.
	maxSeconds = 86400
)

// ParseLine reads one line. The error does not repeat what the file holds,
// but for numbers: it is the task's, and shown to others.
func ParseLine(text []byte) (Line, error) {
	text = bytes.TrimSpace(text)
	if len(text) == 0 || len(text) > maxLine {
		return Line{}, fmt.Errorf("a line of %d bytes; allowed are 1 to %d", len(text), maxLine)
	}
	var step, seconds float64
	if text[0] == '{' {
		var values struct {
			Step    *float64 `json:"step"`
			Seconds float64  `json:"seconds"`
		}
		if err := json.Unmarshal(text, &values); err != nil || values.Step == nil {
			return Line{}, fmt.Errorf(`a line that is no JSON object with the number "step"`)
		}
		step, seconds = *values.Step, values.Seconds
	} else {
		fields := strings.Fields(string(text))
		if len(fields) > 2 {
			return Line{}, fmt.Errorf("a line of %d words; allowed are `step` and `step seconds`", len(fields))
		}
		var err error
		if step, err = strconv.ParseFloat(fields[0], 64); err != nil {
			return Line{}, fmt.Errorf("a line that does not begin with a number, the step")
		}
		if len(fields) == 2 {
			if seconds, err = strconv.ParseFloat(fields[1], 64); err != nil {
				return Line{}, fmt.Errorf("a line whose second word is no number, the step's time in seconds")
			}
		}
	}
	if !(step >= 0 && step <= maxStep) || step != math.Trunc(step) {
		return Line{}, fmt.Errorf("step %g; allowed are whole numbers from 0 to 2^53", step)
	}
	if !(seconds >= 0 && seconds <= maxSeconds) {
		return Line{}, fmt.Errorf("seconds %g; allowed are 0 to %d: the time that the step took, not a point in time", seconds, maxSeconds)
	}
	return Line{Step: uint64(step), Seconds: seconds}, nil
}

// lastLine is the newest line that is written to its end. A file of one line
// may leave the end out.
func lastLine(data []byte) []byte {
	end := bytes.LastIndexByte(data, '\n')
	if end < 0 {
		return data
	}
	data = bytes.TrimRight(data[:end], "\n\r \t")
	return data[bytes.LastIndexByte(data, '\n')+1:]
}
