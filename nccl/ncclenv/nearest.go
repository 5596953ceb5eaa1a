package ncclenv

import (
	"slices"
	"strings"
)

// Nearest returns the names that are likely meant by one that nothing reads, the best first, at most three.
func Nearest(name string) []string {
	type near struct {
		name string
		cost int
	}
	var found []near
	up := strings.ToUpper(name)
	prefix := up[:strings.IndexByte(up+"_", '_')]
	words := strings.Split(up, "_")
	slices.Sort(words)
	for _, v := range inOrder() {
		if v.Status == Foreign || v.Status == Gone || v.Layer == "process" || v.Layer == "conf" && v.Name == "HOME" {
			continue
		}
		// A slip in the common prefix and one in the rest are judged apart, or every short name would be near.
		own := v.Name[:strings.IndexByte(v.Name, '_')]
		rest, ownRest := strings.TrimPrefix(up, prefix), strings.TrimPrefix(v.Name, own)
		cost := 100
		if off := len(rest) - len(ownRest); -8 < off && off < 8 && (prefix == own || own == "NCCL") { // else too far, and it takes time
			cost = min(distance(rest, ownRest), distance(strings.ReplaceAll(rest, "_", ""), strings.ReplaceAll(ownRest, "_", "")))
		}
		ownWords := strings.Split(v.Name, "_")
		slices.Sort(ownWords)
		switch limit := 1 + len(ownRest)/8; {
		case prefix != own && !(misspelt(prefix) && own == "NCCL"):
			continue
		case slices.Equal(words, ownWords): // NCCL_DISABLE_IB
			cost = 1
		case cost <= limit && cost < len(ownRest)-1:
		case len(ownRest) >= 8 && strings.HasPrefix(rest, ownRest) && len(rest) <= len(ownRest)+4: // NCCL_DEBUG_SUBSYSTEM
			cost = limit + 1
		case len(words) == len(ownWords)-1 && contains(ownWords, words) && len(rest) >= 4: // NCCL_IFNAME
			cost = limit + 1
		default:
			continue
		}
		if v.Status != Current {
			cost++
		}
		found = append(found, near{v.Name, cost})
	}
	slices.SortStableFunc(found, func(a, b near) int { return a.cost - b.cost })
	var names []string
	for _, f := range found {
		if len(names) < 3 && f.cost <= found[0].cost+1 {
			names = append(names, f.name)
		}
	}
	return names
}

// contains tells whether the sorted all has every one of the sorted some.
func contains(all, some []string) bool {
	for _, s := range some {
		if _, ok := slices.BinarySearch(all, s); !ok {
			return false
		}
	}
	return true
}

// misspelt tells whether a prefix is NCCL with one slip. Other libraries have such names too (RCCL, HCCL, CNCL), so only its own letters count.
func misspelt(prefix string) bool {
	return prefix != "NCCL" && prefix != "CNCL" && prefix != "CCL" && strings.Trim(prefix, "NCL") == "" && len(prefix) >= 3 && distance(prefix, "NCCL") == 1
}

// distance counts the letters to insert, delete, replace or swap with the next one.
func distance(a, b string) int {
	if len(a) > 100 || len(b) > 100 { // no name is that long, and the cost is the product
		return len(a) + len(b)
	}
	var before, last []int
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, last = last, row
		row = make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			replace := last[j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			row[j] = min(last[j]+1, row[j-1]+1, replace)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}

// nearestWord is the one of words within two letters of s, or nothing.
func nearestWord(s string, words []string) string {
	best, at := "", 3
	for _, w := range words {
		if d := distance(strings.ToUpper(s), strings.ToUpper(w)); d < at && d < len(w) {
			best, at = w, d
		}
	}
	return best
}
