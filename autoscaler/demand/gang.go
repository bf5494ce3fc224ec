// SPDX-License-Identifier: MPL-2.0

package demand

import "encoding/json"

// leastOf is with how many members a gang runs, by the gang block of its task:
// min_nodes, or without it nodes; 0: it does not tell. Spares are beyond nodes,
// in the group's count.
func leastOf(block any) int {
	switch b := block.(type) {
	case []any: // as Nomad gives it
		if len(b) > 0 {
			return leastOf(b[0])
		}
	case []map[string]any:
		if len(b) > 0 {
			return leastOf(b[0])
		}
	case map[string]any:
		if n := number(b["min_nodes"]); n > 0 {
			return n
		}
		return number(b["nodes"])
	}
	return 0
}

// number is a whole number of a job's configuration, 0 where it is none or out
// of bounds.
func number(v any) int {
	var n float64
	switch v := v.(type) {
	case float64:
		n = v
	case int:
		n = float64(v)
	case json.Number:
		n, _ = v.Float64()
	}
	if n != float64(int(n)) || n < 0 || n > maxCount {
		return 0
	}
	return int(n)
}
