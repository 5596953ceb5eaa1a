package ncclog

import (
	"bytes"
	"strconv"
	"strings"
)

type warnKey struct {
	proc  *process
	place string
	form  string

	status int
}

// warn takes a WARN line.
func (r *Reader) warn(t *thread, place, msg []byte) {
	msg = bytes.TrimRight(msg, " ")
	if len(place) == 0 { // some plugins put the place behind the level
		if p, rest, ok := sourcePlace(msg); ok {
			place, msg = p, rest
		}
	}
	if contains(msg, "Got completion") || contains(msg, "sync event") || contains(msg, "sync fatal") || contains(msg, "sync error event") || contains(msg, "GID table changed") {
		r.ibError(t, msg)
	}
	key := warnKey{proc: t.proc, place: r.str(place), form: r.str(withoutDigits(msg))}
	if contains(msg, "Got completion") { // here a number makes all the difference
		key.status = numberAfter(msg, "with error ", "status=")
	}
	if w := r.warned[key]; w != nil {
		w.Count++
		return
	}
	if len(r.log.Warnings) >= maxWarnings {
		r.drop("warnings")
		return
	}
	w := &Warning{Process: t.proc.Process, Proc: t.proc.Index, Dev: t.dev, Place: key.place, Text: strings.ToValidUTF8(string(msg[:min(len(msg), maxText)]), "?"),
		Count: 1, At: r.evidence(msg)}
	if e := lookUp(w.Place, w.Text); e != nil {
		w.ID, w.Meaning, w.Next, w.Effect = e.id, e.meaning, e.next, e.effect
	}
	w.Peer = peerOf(msg)
	if t.proc.Index < 0 {
		w.Proc = -1
	}
	r.warned[key] = w
	r.log.Warnings = append(r.log.Warnings, w)
}

// withoutDigits is the form of a message: numbers do not make it another one.
func withoutDigits(b []byte) []byte {
	out := make([]byte, 0, len(b))
	for _, c := range b[:min(len(b), 200)] {
		if c-'0' < 10 {
			if n := len(out); n > 0 && out[n-1] == '#' {
				continue
			}
			c = '#'
		}
		out = append(out, c)
	}
	return out
}

// peerOf is the other end that a message names.
func peerOf(msg []byte) string {
	for _, words := range []string{"remote peer ", "from peer ", "peer ", "Connect to ", "connect to ", "from rank "} {
		rest := after(msg, words)
		if rest == nil {
			continue
		}
		w := bytes.TrimRight(cutAt(rest, " "), ",.:")
		if contains(w, "<") || bytes.IndexByte(w, '.') > 0 {
			return string(w)
		}
		if c := at(w); words == "from rank " && c.num() >= 0 && !c.bad {
			return "rank " + string(w)
		}
	}
	return ""
}

// statusNames by ibv_wc_status.
var statusNames = map[int]string{0: "SUCCESS", 1: "LOC_LEN", 2: "LOC_QP_OP", 3: "LOC_EEC_OP", 4: "LOC_PROT", 5: "WR_FLUSH", 6: "MW_BIND", 7: "BAD_RESP", 8: "LOC_ACCESS",
	9: "REM_INV_REQ", 10: "REM_ACCESS", 11: "REM_OP", 12: "RETRY_EXC", 13: "RNR_RETRY", 14: "LOC_RDD_VIOL", 15: "REM_INV_RD_REQ", 16: "REM_ABORT", 17: "INV_EECN",
	18: "INV_EEC_STATE", 19: "FATAL", 20: "RESP_TIMEOUT", 21: "GENERAL"}

// ibError takes a failed completion or an event of a device, in the wordings of all versions.
func (r *Reader) ibError(t *thread, msg []byte) {
	e := IBError{Kind: "event", Status: -1, VendorErr: -1, Opcode: -1, Len: -1}
	if contains(msg, "Got completion") {
		e.completion(msg)
	} else {
		e.event(msg)
	}
	for _, o := range t.proc.IBErrors {
		if o.Kind == e.Kind && o.Status == e.Status && o.VendorErr == e.VendorErr && o.Peer == e.Peer && o.HCA == e.HCA && o.Port == e.Port && o.Event == e.Event {
			o.Count++
			return
		}
	}
	if len(t.proc.IBErrors) >= maxKinds {
		r.drop("errors of NICs")
		return
	}
	e.Count, e.At = 1, r.evidence(msg)
	t.proc.IBErrors = append(t.proc.IBErrors, &e)
}

func (e *IBError) completion(msg []byte) {
	e.Kind = "completion"
	e.Peer = string(bytes.TrimRight(cutAt(after(msg, "from peer "), " "), ","))
	e.Status = numberAfter(msg, "with error ", "status=")
	e.StatusName = statusNames[e.Status]
	if name := cutAt(after(msg, "status="), "("); e.Status < 0 && len(name) > 0 && len(name) < 40 { // "status=RETRY_EXC(12)"
		e.StatusName = strings.TrimPrefix(string(name), "IBV_WC_")
		e.Status = numberAfter(msg, string(name)+"(")
	}
	e.VendorErr = numberAfter(msg, "vendor err ", "vendor_err=")
	e.Opcode = numberAfter(msg, "opcode ", "opcode=")
	e.Len = int64(numberAfter(msg, "len ", "len=", "reqSize="))
	switch {
	case contains(msg, "(Send)") || contains(msg, "req_type=Send"):
		e.Request = "Send"
	case contains(msg, "(Recv)") || contains(msg, "req_type=Recv"):
		e.Request = "Recv"
	}
	e.HCA = string(cutAt(after(msg, " hca "), " "))
	e.LocalGID = string(bytes.TrimSpace(cutAt(after(msg, "localGid "), " ")))
	if rest := after(msg, "remoteGids"); rest != nil {
		if rest[0] == ' ' {
			rest = rest[1:]
		}
		e.RemoteGID = string(cutAt(rest, " "))
	}
}

// numberAfter is the number that stands behind the first of the words, -1: none.
func numberAfter(msg []byte, words ...string) int {
	for _, w := range words {
		c := at(msg)
		if c.find(w) {
			if n := c.num(); !c.bad {
				return n
			}
		}
	}
	return -1
}

// event takes "NET/IB : mlx5_1:1 async fatal event on QP (0x…): …", "NET/IB : Got async event : port error" and the like.
func (e *IBError) event(msg []byte) {
	e.Fatal = contains(msg, "fatal") && !contains(msg, "non-fatal")
	text := msg
	for _, prefix := range []string{"NET/IB : ", "NET/IB: "} {
		text = bytes.TrimPrefix(text, []byte(prefix))
	}
	word := cutAt(text, " ")
	if i := bytes.LastIndexByte(word, ':'); i > 0 {
		if port, err := strconv.Atoi(string(word[i+1:])); err == nil {
			e.HCA, e.Port = string(word[:i]), port
			text = bytes.TrimSpace(text[len(word):])
		}
	}
	for _, words := range []string{" event on QP ", "event : ", "event: ", "event on ", "event "} {
		if rest := after(text, words); rest != nil {
			if j := bytes.Index(rest, []byte("): ")); j > 0 && rest[0] == '(' {
				rest = rest[j+3:]
			}
			e.Event = string(bytes.TrimSpace(rest[:min(len(rest), 200)]))
			return
		}
	}
	e.Event = string(text[:min(len(text), 200)])
}

// failureForms are lines of the program or the launcher, by words in them.
var failureForms = []struct{ words, kind string }{
	{"Watchdog caught collective operation timeout", "watchdog"},
	{"Detected mismatch between collectives", "mismatch"},
	{"DistBackendError", "exception"},
	{"NCCL error in:", "exception"},
	{"NCCL communicator was aborted", "exception"},
	{"CUDA out of memory", "out of memory"},
	{"died from signal", "signal"},
	{"Received SIG", "signal"},
	{"oom-kill", "out of memory"},
	{"Segmentation fault", "signal"},
	{"exited with exit code", "launcher"},
	{"(exitcode: ", "launcher"},
	{"Test NCCL failure", "exception"},
	{"Test CUDA failure", "exception"},
}

// wrapped joins the rest of a WARN line that a terminal or an editor broke in two; the sizes in it are what matters.
func (r *Reader) wrapped(line []byte) bool {
	n := len(r.log.Warnings)
	if n == 0 || !hasPrefix(bytes.TrimSpace(line), "receiving ") {
		return false
	}
	w := r.log.Warnings[n-1]
	if w.At.File != r.file || w.At.N != r.n-1 || !strings.HasSuffix(w.Text, "truncated :") {
		return false
	}
	w.Text += " " + strings.ToValidUTF8(string(bytes.TrimSpace(line[:min(len(line), 200)])), "?")
	w.At.Text = w.Text
	return true
}

// foreign takes a line without NCCL's words: the tail of a record, a row of a table, or a line of the program.
func (r *Reader) foreign(line []byte) {
	counts := &r.log.Counts
	if r.matrix != nil {
		if len(line) > 0 && r.matrixRow(line) {
			counts.NCCL++
			return
		}
		r.matrix = nil
	}
	if len(r.open) > 0 && r.tail(line) {
		counts.NCCL++
		counts.Torn++
		return
	}
	if r.wrapped(line) {
		counts.NCCL++
		return
	}
	counts.Other++
	if len(line) < 16 {
		return
	}
	for _, f := range failureForms {
		if contains(line, f.words) {
			r.failure(f.kind, line)
			return
		}
	}
}

func (r *Reader) failure(kind string, line []byte) {
	form := kind + string(withoutDigits(line))
	if i, ok := r.failed[form]; ok {
		r.log.Failures[i].Count++
		return
	}
	if len(r.log.Failures) >= maxKinds {
		r.drop("failures of the program")
		return
	}
	r.failed[form] = len(r.log.Failures)
	r.label = nil
	r.log.Failures = append(r.log.Failures, Failure{kind, 1, r.evidence(bytes.TrimSpace(line))})
}
