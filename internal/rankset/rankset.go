// Package rankset writes and reads lists of ranks, and of processors, as people and the kernel do: "0-2, 4".
package rankset

import (
	"slices"
	"strconv"
	"strings"
)

// Fold writes ranks in ascending order, without repeats and with runs folded, sep between the parts: "0-2, 4, 6-7". No ranks give "".
func Fold(list []int, sep string) string {
	sorted := slices.Compact(slices.Sorted(slices.Values(list)))
	var b strings.Builder
	for i := 0; i < len(sorted); {
		j := i
		for j+1 < len(sorted) && sorted[j+1] == sorted[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteString(sep)
		}
		b.WriteString(strconv.Itoa(sorted[i]))
		if j > i {
			b.WriteString("-" + strconv.Itoa(sorted[j]))
		}
		i = j + 1
	}
	return b.String()
}

// Most is how many ranks Unfold reads: more than any job has.
const Most = 1 << 20

// Parse reads a whole list such as "0-3,8" without blanks, as the kernel writes those of processors; nil when any part is none.
func Parse(text string) (out []int) {
	for part := range strings.SplitSeq(text, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		a, err1 := strconv.Atoi(from)
		b, err2 := strconv.Atoi(to)
		if err1 != nil || err2 != nil || a < 0 || b < a || b >= Most {
			return nil
		}
		for ; a <= b; a++ {
			out = append(out, a)
		}
	}
	return out
}

// Unfold reads what Fold writes. Parts that are no ranks are left out, and so is what goes beyond Most.
func Unfold(text string) (out []int) {
	for _, part := range strings.Split(text, ",") {
		from, to, isRange := strings.Cut(strings.TrimSpace(part), "-")
		a, err := strconv.Atoi(from)
		if err != nil || a < 0 {
			continue
		}
		b := a
		if isRange {
			if b, err = strconv.Atoi(to); err != nil {
				continue
			}
		}
		for ; a <= b && len(out) < Most; a++ {
			out = append(out, a)
		}
	}
	return out
}
