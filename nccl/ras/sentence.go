package ras

import (
	"slices"
	"strconv"
	"strings"
)

// sentence takes a line below the head of a part.
func (t *TextReader) sentence(s string) bool {
	switch {
	case strings.HasPrefix(s, "Rank "):
		return t.rank(s)
	case strings.HasPrefix(s, "Process "):
		return t.process(s)
	case strings.HasPrefix(s, "Communicator ranks have different "):
		return t.differ(s)
	case strings.HasPrefix(s, "The missing rank"):
		return t.missingRanks(s)
	case strings.HasPrefix(s, "The unknown ranks: "):
		return t.unknownRanks(strings.TrimPrefix(s, "The unknown ranks: "))
	case strings.HasPrefix(s, "Missing communicator data from "):
		if n, rest, ok := number(strings.TrimPrefix(s, "Missing communicator data from ")); ok && t.comm != nil && strings.HasPrefix(rest, " rank") {
			t.comm.Lost = n
		}
		return true
	case strings.HasPrefix(s, "Initialization error"), strings.HasPrefix(s, "Asynchronous error"):
		t.init = s[0] == 'I'
		return t.comm != nil
	case strings.Contains(s, "ncountered ") && strings.Contains(s, " communication timeout"):
		_, rest, _ := strings.Cut(s, "ncountered ")
		n, _, ok := number(rest)
		t.report.Timeouts = max(t.report.Timeouts, n)
		return ok
	case strings.HasPrefix(s, "[could not find information on "), strings.Contains(s, " considered dead (unreachable"):
		return true
	}
	n, rest, ok := number(s)
	return ok && t.many(n, strings.TrimSpace(rest))
}

func number(s string) (n int, rest string, ok bool) {
	i := 0
	for i < len(s) && s[i] >= '0' && s[i] <= '9' {
		i++
	}
	n, err := strconv.Atoi(s[:i])
	return n, s[i:], err == nil
}

// differ begins a comparison: "… different AllReduce operation counts", "… different status".
func (t *TextReader) differ(s string) bool {
	what := strings.TrimPrefix(s, "Communicator ranks have different ")
	if t.comm == nil { // a part without its head
		t.comm = &Communicator{Group: -1, Comms: 1, Status: "UNKNOWN", Errors: "MISMATCH"}
		t.raw = append(t.raw, t.comm)
		t.section = "warnings"
	}
	t.op, t.level = "", nil
	if op, ok := strings.CutSuffix(what, " operation counts"); ok {
		t.op = op
		return true
	}
	return what == "status"
}

// many takes what several ranks have in common; those that are outliers follow by name.
func (t *TextReader) many(n int, s string) bool {
	s = strings.TrimPrefix(strings.TrimPrefix(s, "ranks "), "rank ")
	switch {
	case strings.HasPrefix(s, "have launched up to operation "), strings.HasPrefix(s, "has launched up to operation "):
		count, err := strconv.ParseInt(s[strings.LastIndexByte(s, ' ')+1:], 10, 64)
		return err == nil && t.launched(count, n)
	case s == "have not launched any operations", s == "has not launched any operations":
		return t.launched(0, n)
	case strings.HasPrefix(s, "have status "):
		return t.status(strings.TrimPrefix(s, "have status "), n)
	case strings.HasPrefix(s, "reported "):
		return t.reported(strings.TrimPrefix(s, "reported "), n)
	}
	return false
}

func (t *TextReader) launched(count int64, n int) bool {
	if t.comm == nil || n < 0 || n > maxRank || count < 0 {
		return false
	}
	if t.op == "" {
		t.op = "collective"
	}
	if t.comm.Counts == nil {
		t.comm.Counts = make(map[string][]Level)
	}
	levels := append(t.comm.Counts[t.op], Level{Count: count, N: n})
	t.comm.Counts[t.op] = levels
	t.level = &levels[len(levels)-1].Ranks
	return true
}

func (t *TextReader) status(word string, n int) bool {
	if t.comm == nil || n < 0 || n > maxRank || strings.Contains(word, " ") {
		return false
	}
	t.comm.States = append(t.comm.States, StatusLevel{Status: word, N: n})
	t.level = &t.comm.States[len(t.comm.States)-1].Ranks
	return true
}

func (t *TextReader) reported(text string, n int) bool {
	if t.comm == nil || n < 0 || n > maxRank {
		return false
	}
	t.comm.RankErrors = append(t.comm.RankErrors, RankError{Text: text, Init: t.init, N: n})
	t.level = &t.comm.RankErrors[len(t.comm.RankErrors)-1].Ranks
	return true
}

// rank takes "Rank 3 -- GPU 3 managed by process 12 on node h", with or without what it did in between.
func (t *TextReader) rank(s string) bool {
	head, where, located := strings.Cut(s, " -- ")
	rank, rest, ok := number(strings.TrimPrefix(head, "Rank "))
	if !ok && strings.Contains(head, " has status ") { // "Rank 3,4 has status UNKNOWN" of 2.24
		list, word, _ := strings.Cut(strings.TrimPrefix(head, "Rank "), " has status ")
		return t.listed(list, word)
	}
	if !ok || t.comm == nil || rank > maxRank || t.named >= maxNamed {
		return false
	}
	rest = strings.TrimSpace(rest)
	switch {
	case rest == "":
		if !located {
			return false
		}
	case strings.HasPrefix(rest, "has status "):
		ok = t.status(strings.TrimPrefix(rest, "has status "), 1)
	case strings.HasPrefix(rest, "has "):
		ok = t.many(1, rest)
	case strings.HasPrefix(rest, "reported "):
		ok = t.reported(strings.TrimPrefix(rest, "reported "), 1)
	case strings.HasPrefix(rest, ","):
		list, word, found := strings.Cut(strings.TrimPrefix(head, "Rank "), " has status ")
		return found && t.listed(list, word)
	default:
		return false
	}
	if !ok {
		return false
	}
	t.named++
	place := readPlace(rank, where)
	switch {
	case t.level != nil:
		*t.level = append(*t.level, rank)
		if rest != "" {
			t.level = nil
		}
	default: // a rank that is missing
		t.comm.Missing = append(t.comm.Missing, Missing{Rank: rank, Host: place.Host, PID: place.PID, GPU: place.GPU, Unresponsive: true})
	}
	if place.Host != "" {
		t.comm.Places = append(t.comm.Places, place)
	}
	return true
}

// readPlace takes "GPU 4 (NVML 6) managed by process 32032 on node 192.0.2.1".
func readPlace(rank int, s string) Place {
	p := Place{Rank: rank, GPU: -1}
	gpu, rest, ok := strings.Cut(strings.TrimPrefix(s, "GPU "), " managed by process ")
	if !ok {
		return p
	}
	if n, _, ok := number(gpu); ok {
		p.GPU = n
	}
	pid, host, _ := strings.Cut(rest, " on node ")
	p.PID, _ = strconv.Atoi(pid)
	p.Host = host
	return p
}

// process takes "Process 3487984 on node 192.0.2.1 managing GPU 5" and "… managing GPUs 0,1".
func (t *TextReader) process(s string) bool {
	pid, rest, ok := number(strings.TrimPrefix(s, "Process "))
	host, gpus, ok2 := strings.Cut(strings.TrimPrefix(rest, " on node "), " managing GPU")
	if !ok || !ok2 || t.named >= maxNamed {
		return false
	}
	t.named++
	m := Missing{Rank: -1, Host: host, PID: pid, GPU: -1, Unresponsive: true, Dead: t.dead}
	gpus = strings.TrimSpace(strings.TrimPrefix(gpus, "s"))
	if n, rest, ok := number(gpus); ok && !strings.HasPrefix(rest, ",") {
		m.GPU = n
	}
	if t.list == nil {
		return false
	}
	*t.list = append(*t.list, m)
	return true
}

// missingRanks takes "The missing rank: 21" and "The missing ranks: 3,4,21" of 2.24 and 2.25.
func (t *TextReader) missingRanks(s string) bool {
	_, list, ok := strings.Cut(s, ": ")
	ranks := t.ranks(list)
	if !ok || t.comm == nil || ranks == nil {
		return false
	}
	for _, r := range ranks {
		t.comm.Missing = append(t.comm.Missing, Missing{Rank: r, GPU: -1, Unresponsive: true})
	}
	t.comm.Lost = max(t.comm.Lost, len(t.comm.Missing))
	return true
}

// unknownRanks names the ranks of the state that came last.
func (t *TextReader) unknownRanks(list string) bool {
	ranks := t.ranks(list)
	if t.comm == nil || ranks == nil || len(t.comm.States) == 0 {
		return false
	}
	last := &t.comm.States[len(t.comm.States)-1]
	last.Ranks = append(last.Ranks, ranks...)
	return true
}

func (t *TextReader) listed(list, word string) bool {
	ranks := t.ranks(list)
	if ranks == nil || !t.status(word, len(ranks)) {
		return false
	}
	*t.level = append(*t.level, ranks...)
	t.level = nil
	return true
}

// ranks reads "3,4,11"; nil if it is something else. NCCL writes no ranges here, and a few bytes must not stand for a million ranks.
func (t *TextReader) ranks(list string) []int {
	var out []int
	for part := range strings.SplitSeq(list, ",") {
		r, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || r < 0 || r > maxRank || t.named >= maxNamed {
			return nil
		}
		t.named++
		out = append(out, r)
	}
	return slices.Compact(out)
}
