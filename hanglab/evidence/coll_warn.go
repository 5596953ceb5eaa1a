package evidence

import (
	"bytes"
	"strconv"
	"strings"
)

// warn takes a line of level WARN. One that says nothing more special is kept as it is.
func (c *collReader) warn(p *ncclProc, before, msg, line []byte, at Where) {
	f := ncclFact(NCCLWarn, p, before, line, at)
	f.Op = sourceOf(before)
	for _, form := range warnForms {
		if bytes.Contains(msg, form.words) && form.take(&f, msg) {
			break
		}
	}
	c.emit(f)
}

// sourceOf is the place in NCCL's source in front of the level: "transport/net_ib.cc:1295".
func sourceOf(before []byte) string {
	before = bytes.TrimRight(before, " ")
	if n := len(before); n > 0 && before[n-1] == ')' { // 2.30: "net.cc:55 (function)"
		if i := bytes.LastIndexByte(before, '('); i > 0 {
			before = bytes.TrimRight(before[:i], " ")
		}
	}
	word := before[bytes.LastIndexByte(before, ' ')+1:]
	i := bytes.LastIndexByte(word, ':')
	if i < 1 || !isNumber(word[i+1:]) || !bytes.ContainsRune(word[:i], '.') || len(word) > 80 {
		return ""
	}
	return strings.ToValidUTF8(string(word), "?")
}

// warnForm is a warning with these words in it. take fills the fact in, or refuses when the rest does not fit.
type warnForm struct {
	words []byte
	take  func(f *Fact, msg []byte) bool
}

// warnForms in the order in which they are tried.
var warnForms = []warnForm{
	{[]byte("Got completion"), warnCompletion},
	{[]byte("onnection closed by"), warnClosed},
	{[]byte("Could not receive type from localRank"), warnLocalRank},
	{[]byte("collective mismatch error"), warnSizes},
	{[]byte("Mismatched collective detected"), warnAround},
	{[]byte("runcated"), warnTruncated},
	{[]byte("Mismatched NCCL version"), warnVersion},
	{[]byte("Duplicate GPU detected"), warnDuplicate},
	{[]byte("Cuda failure"), warnCUDA},
	{[]byte("CUDA failure"), warnCUDA},
	{[]byte("event"), warnEvent},
	{[]byte("GID table"), warnGID},
	{nil, warnSetup},
	{[]byte("onnect"), warnConnect},
}

// completionNames by ibv_wc_status, without the words in front that all have.
var completionNames = map[int]string{
	1: "LOC_LEN_ERR", 2: "LOC_QP_OP_ERR", 4: "LOC_PROT_ERR", 5: "WR_FLUSH_ERR", 7: "BAD_RESP_ERR", 8: "LOC_ACCESS_ERR", 9: "REM_INV_REQ_ERR",
	10: "REM_ACCESS_ERR", 11: "REM_OP_ERR", 12: "RETRY_EXC_ERR", 13: "RNR_RETRY_EXC_ERR", 19: "FATAL_ERR", 20: "RESP_TIMEOUT_ERR", 21: "GENERAL_ERR",
}

// warnCompletion takes a failed work completion in the forms of all versions: "with error 12", "status=12", "status=RETRY_EXC_ERR(12)".
func warnCompletion(f *Fact, msg []byte) bool {
	f.Kind = IBError
	n, ok := numberBehind(msg, "with error ", "status=")
	if !ok {
		if _, rest, found := bytes.Cut(msg, []byte("status=")); found {
			n, _ = numberBehind(rest[:min(len(rest), 60)], "(")
		}
	}
	f.Code = n
	f.Consequence = n == 5 // flushed, because an earlier one failed
	parts := []string{}
	if name := completionNames[n]; name != "" {
		parts = append(parts, name)
	}
	if peer := wordBehind(msg, "from peer "); peer != "" {
		parts = append(parts, "peer "+peer)
	}
	if v, ok := numberBehind(msg, "vendor err ", "vendor_err="); ok {
		parts = append(parts, "vendor error "+strconv.Itoa(v))
	}
	if hca := wordBehind(msg, " hca "); hca != "" {
		parts = append(parts, "device "+hca)
	}
	f.Detail = strings.Join(parts, ", ")
	return true
}

// warnClosed takes "Connection closed by remote peer node7<4321>".
func warnClosed(f *Fact, msg []byte) bool {
	f.Kind = PeerClosed
	if peer := wordBehind(msg, "remote peer "); peer != "" {
		f.Detail = peer
		return true
	}
	if n, ok := numberBehind(msg, "localRank "); ok {
		f.Detail = "localRank " + strconv.Itoa(n)
	}
	return true
}

// warnLocalRank takes "[Service thread] Could not receive type from localRank 3, res=6, closed=1".
func warnLocalRank(f *Fact, msg []byte) bool {
	n, ok := numberBehind(msg, "localRank ")
	f.Kind, f.Detail = PeerClosed, "localRank "+strconv.Itoa(n)
	f.Code, _ = numberBehind(msg, "res=")
	return ok
}

// warnSizes takes "req 0/1 tag 0 peer 192.0.2.1<3> collective mismatch error, local size 496640 remote size 65536".
func warnSizes(f *Fact, msg []byte) bool {
	f.Kind = Mismatch
	local, ok := numberBehind(msg, "local size ")
	remote, ok2 := numberBehind(msg, "remote size ")
	f.Detail = "local size " + strconv.Itoa(local) + " remote size " + strconv.Itoa(remote)
	if peer := wordBehind(msg, " peer "); peer != "" {
		f.Detail += ", peer " + peer
	}
	return ok && ok2
}

// warnAround takes NCCL 2.4's "… at and around rank 39".
func warnAround(f *Fact, msg []byte) bool {
	f.Kind, f.Detail = Mismatch, "different calls"
	if n, ok := numberBehind(msg, "around rank ", "rank "); ok {
		f.Ranks = []int{n}
	}
	return true
}

// warnTruncated takes "Message truncated : received 65536 bytes instead of 131072" and "message truncated : receiving 8 bytes instead of 4".
func warnTruncated(f *Fact, msg []byte) bool {
	if !bytes.Contains(msg, []byte("essage truncated")) {
		return false
	}
	f.Kind, f.Detail = Mismatch, "truncated message"
	got, ok := numberBehind(msg, "received ", "receiving ")
	want, ok2 := numberBehind(msg, "instead of ")
	if ok && ok2 {
		f.Detail += ": " + strconv.Itoa(got) + " bytes instead of " + strconv.Itoa(want)
	}
	if peer := wordBehind(msg, " peer "); peer != "" {
		f.Detail += ", peer " + peer
	}
	return true
}

// warnVersion takes "Mismatched NCCL version detected : rank 0 version 22304 rank 3 version 21805".
func warnVersion(f *Fact, msg []byte) bool {
	f.Kind, f.Ranks = Version, numbersIn(msg, "rank ")
	var parts []string
	for i, v := range numbersIn(msg, " version ") {
		if i < len(f.Ranks) {
			parts = append(parts, "rank "+strconv.Itoa(f.Ranks[i])+": "+versionName(v))
		}
	}
	f.Detail = strings.Join(parts, ", ")
	return true
}

// versionName is NCCL's version of its number: 22809 is 2.28.9, 2708 was 2.7.8.
func versionName(v int) string {
	unit := 10000
	if v < 10000 {
		unit = 1000
	}
	return strconv.Itoa(v/unit) + "." + strconv.Itoa(v%unit/100) + "." + strconv.Itoa(v%100)
}

// warnDuplicate takes "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1c000".
func warnDuplicate(f *Fact, msg []byte) bool {
	f.Ranks, f.Detail = numbersIn(msg, "rank "), "duplicate GPU"
	if dev := wordBehind(msg, "CUDA device "); dev != "" {
		f.Detail += " " + dev
	}
	return true
}

// warnCUDA takes "Cuda failure 'out of memory'" and "Cuda failure 719 'unspecified launch failure'".
func warnCUDA(f *Fact, msg []byte) bool {
	f.Kind = CUDAError
	if n, ok := numberBehind(msg, "failure "); ok {
		f.Code = n
	}
	if _, rest, ok := bytes.Cut(msg, []byte("'")); ok {
		text, _, _ := bytes.Cut(rest, []byte("'"))
		f.Detail = strings.ToValidUTF8(string(text[:min(len(text), 200)]), "?")
	}
	if f.Code == 2 || f.Detail == "out of memory" {
		f.Kind = CUDAOOM
	}
	return true
}

// warnEvent takes what a NIC's driver reports on its own: "NET/IB : mlx5_1:1 Got async error event: port error", "… async fatal event on QP (0x7f): …",
// "… Got non-fatal async event: GID table change(18)". The event's name tells what it was; most of them change nothing.
func warnEvent(f *Fact, msg []byte) bool {
	if !bytes.Contains(msg, []byte("async")) && !bytes.Contains(msg, []byte("Async")) {
		return false
	}
	mild := containsAny(msg, "non-fatal", "nonfatal", "Non-fatal", "Non-Fatal", "non fatal")
	switch {
	case containsAny(msg, "port error", "port down", "PORT_ERR"):
		f.Kind, f.Detail = LinkDown, "port error"
	case containsAny(msg, "port active", "PORT_ACTIVE"):
		f.Kind, f.Detail = LinkUp, "port active"
	case !mild && containsAny(msg, "fatal", "FATAL"):
		f.Kind, f.Detail = IBError, "fatal event"
	default:
		f.Mild, f.Detail = true, "event without consequences"
	}
	for word := range strings.FieldsSeq(string(msg[:min(len(msg), 120)])) {
		if strings.HasPrefix(word, "mlx") || strings.Contains(word, "_") && strings.Contains(word, ":") {
			f.Detail += ", device " + word
			break
		}
	}
	return true
}

// warnGID takes "NET/IB : mlx5_2:1 GID table changed", which is about no transfer.
func warnGID(f *Fact, msg []byte) bool {
	f.Mild = bytes.Contains(msg, []byte("hange"))
	return f.Mild
}

// setupForms are words of warnings that something is not there, and what it is.
var setupForms = []struct{ words, what string }{
	{"no socket interface found", "interface"}, {"No socket interface found", "interface"}, {"no interface found", "interface"}, {"No interface found", "interface"},
	{"no usable interface", "interface"}, {"Could not find: ", "interface"}, {"shared memory segment", "shared memory"}, {"posix_fallocate failed", "shared memory"},
	{"shmem", "shared memory"}, {"/dev/shm", "shared memory"}, {"ibv_reg_mr", "memory lock"}, {"ibv_reg_dmabuf_mr", "memory lock"}, {"ibv_open_device failed", "device"},
	{"nable to open device", "device"}, {"nvmlDeviceGet", "device"}, {"No CUDA capable device", "device"}, {"no CUDA-capable device", "device"},
	{"ailed to load plugin", "plugin"}, {"ailed to initialize any NET", "plugin"}, {"ailed to find requested NET", "plugin"}, {"Could not find real path of", "topology"},
	{"No usable listening interface", "interface"},
}

// warnSetup takes a warning that a process lacks what it needs on its host. Only those that say so of a failure: names of devices are in many lines.
func warnSetup(f *Fact, msg []byte) bool {
	for _, form := range setupForms {
		if !bytes.Contains(msg, []byte(form.words)) {
			continue
		}
		if form.what != "interface" && !containsAny(msg, "ailed", "rror", "nable", "ould not", "No ", "no ", "not ") {
			continue
		}
		f.Kind = Setup
		f.Detail = form.what + ": " + cutText(bytes.TrimSpace(msg), 200)
		return true
	}
	return false
}

// warnConnect takes a connection that could not be made; whom to is what matters.
func warnConnect(f *Fact, msg []byte) bool {
	for _, words := range []string{"onnect to ", "onnecting to ", "peer "} {
		if peer := wordBehind(msg, words); strings.ContainsAny(peer, "<.") {
			f.Detail = "peer " + strings.TrimRight(peer, ",:")
			return true
		}
	}
	return false
}
