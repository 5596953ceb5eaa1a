package ncclog

import (
	"bytes"
	"strings"
)

// infoForm is a message that begins with fixed words. do gets what follows them; nil: known, and of no interest here.
type infoForm struct {
	words string
	do    func(r *Reader, t *thread, msg, rest []byte)
}

// formsByFirst has the forms by their first byte, because that halves the time of reading a large log.
func formsByFirst() *[256][]infoForm {
	var out [256][]infoForm
	for _, list := range [][]infoForm{processForms, rankForms, networkForms, callForms} {
		for _, f := range list {
			out[f.words[0]] = append(out[f.words[0]], f)
		}
	}
	for _, words := range quietForms {
		out[words[0]] = append(out[words[0]], infoForm{words: words})
	}
	return &out
}

// info takes an INFO message.
func (r *Reader) info(t *thread, msg []byte) {
	if len(msg) == 0 {
		return
	}
	for _, f := range r.forms[msg[0]] {
		if hasPrefix(msg, f.words) {
			if f.do != nil {
				f.do(r, t, msg, msg[len(f.words):])
			}
			return
		}
	}
	r.infoByShape(t, msg)
}

// infoByShape takes messages that begin with something variable.
func (r *Reader) infoByShape(t *thread, msg []byte) {
	switch c := msg[0]; {
	case c == ' ' || c == '+' || c == '=':
		r.drawing(t, msg)
		return
	case c-'0' < 10:
		if r.counted(t, msg) {
			return
		}
	case c == '[' && r.bracket(t, msg):
		return
	case len(t.cols) > 0 && contains(msg, " |"): // a name as wide as its column
		r.tableRow(t, msg)
		return
	}
	if place, rest, ok := sourcePlace(msg); ok {
		r.fromSource(t, place, msg, rest)
		return
	}
	if r.setting(t, msg) || r.call(t, msg) || r.selection(t, msg) || r.oddShapes(t, msg) {
		return
	}
	if r.torn { // the rest of it is somewhere else
		return
	}
	r.unknownKind(msg)
}

// bracket takes "[Rank 3] ncclCommInitRank…", "[Proxy Service] …", "[Service thread] …".
func (r *Reader) bracket(t *thread, msg []byte) bool {
	i := bytes.Index(msg, []byte("] "))
	if i < 0 {
		return false
	}
	inside, rest := msg[1:i], msg[i+2:]
	switch {
	case hasPrefix(inside, "Rank "):
		r.info(t, rest)
		t.proc.form(29, 99)
	case hasPrefix(inside, "Proxy "):
		r.proxyCore(t, msg, inside[len("Proxy "):], rest)
	case hasPrefix(inside, "Service thread"):
		if hasPrefix(rest, "Connection closed by localRank") {
			r.notice(t, "local-rank-closed", msg)
		}
	default:
		return false
	}
	return true
}

// sourcePlace finds "transport/net.cc:1008 " or "net.cc:55 (func) " in front of a message.
func sourcePlace(msg []byte) (place, rest []byte, ok bool) {
	i := bytes.IndexByte(msg, ' ')
	if i < 5 {
		return nil, nil, false
	}
	word := msg[:i]
	j := bytes.LastIndexByte(word, ':')
	if j < 3 || j+1 == len(word) {
		return nil, nil, false
	}
	for _, d := range word[j+1:] {
		if d-'0' >= 10 {
			return nil, nil, false
		}
	}
	name := word[:j]
	if !hasSuffix(name, ".cc") && !hasSuffix(name, ".h") && !hasSuffix(name, ".c") && !hasSuffix(name, ".cu") && !hasSuffix(name, ".cpp") {
		return nil, nil, false
	}
	rest = msg[i+1:]
	if len(rest) > 0 && rest[0] == '(' {
		if k := bytes.Index(rest, []byte(") ")); k > 0 {
			rest = rest[k+2:]
		}
	}
	return word, rest, true
}

// fromSource takes the message behind a place in NCCL's source: a step of an error on its way up, memory, or (2.30) any message.
func (r *Reader) fromSource(t *thread, place, msg, rest []byte) {
	c := at(rest)
	if c.try("-> ") {
		result := c.num()
		if c.bad {
			return
		}
		p := t.proc
		for _, old := range p.Traces {
			if old.Result == result && old.Place == string(place) {
				old.Count++
				return
			}
		}
		if len(p.Traces) >= 256 {
			r.drop("return traces")
			return
		}
		p.Traces = append(p.Traces, &ReturnTrace{Place: r.str(place), Result: result, Count: 1, At: r.evidence(msg)})
		return
	}
	for _, quiet := range []string{"Cuda Alloc", "Cuda Host Alloc", "memory stack", "Mem Alloc", "Alloc", "Cuda Free", "Ibv Alloc", "CuMem", "cuMem"} {
		if hasPrefix(rest, quiet) {
			return
		}
	}
	if len(rest) > 0 && len(rest) < len(msg) {
		r.info(t, rest)
	}
}

// unknownKind counts a message by its form: digits do not matter, nor what follows the first words.
func (r *Reader) unknownKind(msg []byte) {
	var key [60]byte
	n := 0
	address := false
	for i, b := range msg {
		if n == len(key) {
			break
		}
		if address = i > 0 && b == 'x' && msg[i-1] == '0' || address && unhex(b) < 16; address || b-'0' < 10 {
			if n > 0 && key[n-1] == '#' {
				continue
			}
			b = '#'
		}
		key[n] = b
		n++
	}
	counts := &r.log.Counts
	if i, ok := r.unknown[string(key[:n])]; ok {
		counts.Unknown[i].Count++
		return
	}
	if len(counts.Unknown) >= maxKinds {
		r.drop("unknown kinds of message")
		return
	}
	kind := strings.ToValidUTF8(string(key[:n]), "?")
	r.unknown[string(key[:n])] = len(counts.Unknown)
	counts.Unknown = append(counts.Unknown, UnknownKind{Kind: kind, Count: 1, First: r.evidence(msg)})
}

// notice keeps a message of interest, equal kinds of a process once.
func (r *Reader) notice(t *thread, kind string, msg []byte) {
	for _, n := range t.proc.Notices {
		if n.Kind == kind {
			n.Count++
			return
		}
	}
	if len(t.proc.Notices) < maxList {
		t.proc.Notices = append(t.proc.Notices, &Notice{Kind: kind, Count: 1, At: r.evidence(msg)})
	}
}

// form narrows the versions that the lines of a process allow.
func (p *process) form(lo, hi int) {
	p.lo, p.hi = max(p.lo, lo), min(p.hi, hi)
}

// addFact appends a fact with a value that is not in the list.
func addFact(r *Reader, list *[]Fact[string], value, msg []byte) {
	for i := range *list {
		if (*list)[i].Value == string(value) {
			return
		}
	}
	if len(*list) >= maxList {
		r.drop("facts of a process")
		return
	}
	*list = append(*list, Fact[string]{r.str(value), r.evidence(msg)})
}

func noticeForm(kind string) func(*Reader, *thread, []byte, []byte) {
	return func(r *Reader, t *thread, msg, _ []byte) { r.notice(t, kind, msg) }
}

// quietForms are messages of NCCL that say nothing this package keeps. A message that is neither here nor in the other tables is counted as
// unknown, so nothing belongs here on suspicion.
var quietForms = []string{
	"Mem Realloc", "Using non-device net plugin", "RAS ", "Retrieving state for ", "Initialized state ", "Loading unnamed topology", "UDS: ",
	"New proxy recv connection ", "New proxy send connection ", "proxyProgressAsync ", "ncclPollProxyResponse ", "Received and initiated operation=", "resp.opId=",
	"Connection to proxy localRank ", "Allocated shareable buffer ", "Launch mode ", "Topology detection", "Could not find real path of ",
	"ncclTopoPopulateNics ", "ncclP2pSchedule", "dlvsym failed on ", "dlsym failed on ", "Socket handshake magic ", "PARAM: ",
}
