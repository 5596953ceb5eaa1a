package ncclenv

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Types of values, as the column type of the catalogue has them.
const (
	typeFlag      = "flag"      // 0 or 1, read as a number
	typeInt       = "int"       // whole number: decimal, 0x for hexadecimal, 0 for octal; reading stops at the first other character
	typePow2      = "pow2"      // such a number, a power of two
	typeThreads   = "threads"   // such a number, a multiple of 32
	typeBytes     = "bytes"     // such a number, without a unit
	typeBool      = "bool"      // since 2.30.7: 1, T, TRUE, 0, F, FALSE; a number before
	typeWord      = "word"      // one word, upper or lower case
	typeExact     = "exact"     // one word in just these letters
	typeWords     = "words"     // list with commas, ^ in front for all but these
	typeLevel     = "level"     // distance: a word in capitals, or a digit of an old scale
	typeAlgo      = "algo"      // lists for all functions or one: "ring;allreduce:^tree"
	typeProto     = "proto"     //
	typeIfname    = "ifname"    // beginnings of names; = exact, ^ all but
	typeHCA       = "hca"       // the same, with :port:rail:plane
	typeNet       = "netname"   // name of a network
	typePlugin    = "plugin"    // suffix, library, none
	typePath      = "path"      // file that is written
	typeFile      = "file"      // file that is read
	typeHostPort  = "hostport"  //
	typeCIDR      = "cidr"      //
	typeCTAPolicy = "ctapolicy" //
	typeNetDevs   = "netdevs"   //
	typeMerge     = "mergelist" //
	typeCPUSet    = "cpuset"    //
	typeSixInts   = "sixints"   //
	typeHex64     = "hex64"     //
	typeStrftime  = "strftime"  //
	typeString    = "string"    // anything
	typeTorchBool = "tbool"     // PyTorch: 1 y yes t true, 0 n no f false; anything else is an error at start
	typeTorch01   = "tbool01"   // PyTorch: 0 or 1; anything else is ignored
	typeTorchInt  = "tint"      // PyTorch: whole number, decimal
	typeTorchWord = "tword"     // PyTorch: one word; anything else is an error at start
	typeNone      = "none"      // nothing reads it
)

// typeTells says for explain how a value is written.
var typeTells = map[string]string{
	typeFlag: "a number; true, yes and on are read as 0", typeInt: "whole number (0x hexadecimal, 0 in front octal; no units)",
	typePow2: "whole number, a power of two", typeThreads: "whole number, a multiple of 32", typeBytes: "bytes as a plain number; 4M is read as 4",
	typeBool: "1, T, TRUE or 0, F, FALSE since 2.30.7; before, a number", typeWord: "one word, upper or lower case", typeExact: "one word in just these letters",
	typeWords:  "words with commas between; ^ in front of the list: all but these",
	typeLevel:  "one word in capitals; digits are an older scale: 0 LOC, 1 PIX, 2 PXB, 3 PHB, 4 SYS",
	typeAlgo:   "words with commas, upper or lower case; ^ in front of a list: all but these; since 2.24 also per function: ring;allreduce:^tree,nvls",
	typeProto:  "words with commas, upper or lower case; ^ in front of a list: all but these; since 2.24 also per function: ^LL128;allreduce:LL,Simple",
	typeIfname: "beginnings of names with commas: eth1 takes eth10, too; = in front of the list: exact names; ^: all but these; ^=: both",
	typeHCA:    "beginnings of names with commas, each name:port:rail:plane: mlx5_1 takes mlx5_10, too; = in front of the list: exact names; ^: all but these; ^=: both",
	typeNet:    "IB, Socket or the name of a plugin's network, upper or lower case", typePlugin: "suffix (foo for libnccl-…-foo.so), file name, or none",
	typePath: "path of a file to write", typeFile: "path of a file to read", typeHostPort: "host:port, [IPv6]:port", typeCIDR: "address/bits",
	typeCTAPolicy: "words with | between, or the old 0, 1, 2", typeNetDevs: "AUTO, ALL or MAX:n", typeMerge: "exact names: a,b;c,d",
	typeCPUSet: "cores: 0-3,8", typeSixInts: "six numbers with blanks between", typeHex64: "64-bit number, 0x for hexadecimal",
	typeStrftime: "form of strftime", typeString: "text", typeTorchBool: "1, y, yes, t, true or 0, n, no, f, false; anything else is an error at start",
	typeTorch01: "0 or 1", typeTorchInt: "whole number", typeTorchWord: "one word", typeNone: "nothing reads it",
}

func (v *Variable) integer() bool {
	return slices.Contains([]string{typeFlag, typeInt, typePow2, typeThreads, typeBytes}, v.Type)
}

// cInt reads as C's strtoll with base 0 does: digits as far as they go. rest is what it leaves; ok is false where there was no digit at all, which C
// reports as 0.
func cInt(s string) (n int64, rest string, ok, overflow bool) {
	t := strings.TrimLeft(s, " \t\n\v\f\r")
	sign := ""
	if t != "" && (t[0] == '-' || t[0] == '+') {
		sign, t = strings.TrimPrefix(t[:1], "+"), t[1:]
	}
	base, digits := 10, "0123456789"
	switch {
	case len(t) > 2 && (t[:2] == "0x" || t[:2] == "0X") && strings.ContainsRune("0123456789abcdefABCDEF", rune(t[2])):
		base, digits, t = 16, "0123456789abcdefABCDEF", t[2:]
	case len(t) > 1 && t[0] == '0':
		base, digits = 8, "01234567"
	}
	rest = strings.TrimLeft(t, digits)
	number := t[:len(t)-len(rest)]
	if number == "" {
		return 0, s, false, false
	}
	n, err := strconv.ParseInt(sign+number, base, 64)
	return n, rest, true, err != nil
}

// allows tells whether a number is among the values of the catalogue.
func (v *Variable) allows(n int64) bool {
	if len(v.Values) == 0 {
		return true
	}
	for _, c := range v.Values {
		from, to, isRange := strings.Cut(c.Value, "..")
		low, err := strconv.ParseInt(from, 10, 64)
		if err != nil {
			continue
		}
		high := low
		if isRange {
			if high, err = strconv.ParseInt(to, 10, 64); err != nil {
				high = 1<<63 - 1
			}
		}
		if low <= n && n <= high {
			return true
		}
	}
	return false
}

// words of the catalogue's values.
func (v *Variable) words() []string {
	var w []string
	for _, c := range v.Values {
		w = append(w, c.Value)
	}
	return w
}

// choices tells in words what is allowed.
func (v *Variable) choices() string {
	var out []string
	for _, c := range v.Values {
		s := c.Value
		if from, open := strings.CutSuffix(s, ".."); open {
			s = from + " or more"
		} else {
			s = strings.Replace(s, "..", " to ", 1)
		}
		if c.Means != "" {
			s += " (" + c.Means + ")"
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

var (
	unitPattern     = regexp.MustCompile(`(?i)^\s*([kmgt]i?b?|bytes|b|ns|us|µs|ms|msec|s|sec|seconds|min|m|h|%)\s*$`)
	expandPattern   = regexp.MustCompile(`\$\{?[A-Za-z_(]`)
	cpusetPattern   = regexp.MustCompile(`^\d+(-\d+)?(,\d+(-\d+)?)*$`)
	maxPattern      = regexp.MustCompile(`(?i)^MAX:[1-9]\d*$`)
	truths          = []string{"true", "yes", "on", "y", "t", "enable", "enabled"}
	lies            = []string{"false", "no", "off", "n", "f", "disable", "disabled", "none", "null"}
	torchTrue       = []string{"y", "yes", "1", "t", "true"}
	torchFalse      = []string{"n", "no", "0", "f", "false"}
	sizeUnits       = map[byte]int64{'k': 1 << 10, 'm': 1 << 20, 'g': 1 << 30, 't': 1 << 40}
	freeText        = []string{typeStrftime, typeString, typeSixInts, typeNone}
	commentsAllowed = []string{typeStrftime, typeString}
)

// checker judges one setting.
type checker struct {
	v       *Variable
	s       *Setting
	version Version // zero where not known
	found   []Finding
}

func (c *checker) add(f Finding) { c.found = append(c.found, f) }

func (c *checker) before(major, minor, patch int) bool {
	return !c.version.IsZero() && c.version.Before(Version{major, minor, patch})
}

// checkValue says what is wrong with a value. What a shell would still expand cannot be judged.
func checkValue(v *Variable, s *Setting, version Version) []Finding {
	c := &checker{v: v, s: s, version: version}
	if s.Open || s.Hidden || v.Type == typeNone {
		return nil
	}
	if s.Value == "" {
		c.empty()
		return c.found
	}
	text := c.clean(s.Value)
	switch {
	case text == "":
	case expandPattern.MatchString(text) && v.Type != typeStrftime:
		c.add(s.about(Fault, "unexpanded", "$ is left in the value: here no shell replaces it, so %s is taken letter by letter", show(text)).do("write the value out"))
	case v.integer():
		c.integer(text)
	case v.Torch():
		c.torch(text)
	case v.Type == typeIfname || v.Type == typeHCA:
		c.pattern(text)
	case v.Type == typeAlgo || v.Type == typeProto:
		c.grammar(text)
	default:
		c.text(text)
	}
	return c.found
}

func (c *checker) empty() {
	switch c.v.Type {
	case typeTorchBool, typeTorchInt:
		c.add(c.s.about(Fault, "value", "set but empty: PyTorch stops with an error").do("give a value, or unset it"))
	case typeStrftime, typeWords, typeString, typeTorchWord, typePath:
	default:
		c.add(c.s.about(Note, "empty", "set but empty: it counts as not set, and yet a value in a settings file is not looked at").do("unset it, or give a value"))
	}
}

// clean takes off what does not belong to a value, and tells it once, so that the rest can be judged as meant.
func (c *checker) clean(text string) string {
	s := c.s
	free := slices.Contains(freeText, c.v.Type)
	if before, after, found := cutComment(text); found && !slices.Contains(commentsAllowed, c.v.Type) {
		severity, effect := Fault, "the text after # is part of the value"
		if c.v.integer() {
			severity, effect = Odd, "the text after # is part of the value; only because a number ends at a blank does this work"
		}
		c.add(s.about(severity, "comment", "%s: %s", effect, show("#"+after)).do("put comments on lines of their own"))
		text = before
	}
	trimmed := strings.TrimSpace(text)
	if trimmed != text && !free && !(c.v.Type == typeWord && trimmed != "") {
		severity, effect := Fault, "and they are part of it, so nothing will match"
		if c.v.integer() || c.v.Type == typeTorchInt || c.v.Type == typeWords {
			severity, effect = Odd, "which this variable happens to bear"
		}
		c.add(s.about(severity, "blank", "blanks (or a carriage return) stand around the value, %s", effect).do("write %s=%s", s.Name, trimmed))
	}
	if !free {
		text = trimmed
	}
	if n := len(text); n > 0 && strings.ContainsAny(text[:1]+text[n-1:], `'"`) {
		inner := strings.TrimSpace(strings.Trim(text, `'"`))
		c.add(s.about(Fault, "quotes", "the quotes are part of the value: what is read here is not a shell, which would take them off").do("write %s=%s", s.Name, inner))
		text = inner
	}
	return text
}

func cutComment(text string) (before, after string, found bool) {
	i := strings.Index(text, " #")
	if j := strings.Index(text, "\t#"); i < 0 || j >= 0 && j < i {
		i = j
	}
	if i <= 0 {
		return text, "", false
	}
	return strings.TrimRight(text[:i], " \t"), text[i+2:], true
}

// integer judges what strtoll makes of it.
func (c *checker) integer(text string) {
	s, v := c.s, c.v
	n, rest, ok, overflow := cInt(text)
	lower := strings.ToLower(text)
	switch {
	case overflow:
		c.add(s.about(Fault, "range", "%s does not fit into 64 bits: NCCL takes the default", text).do("give %s", v.choices()))
		return
	case !ok && slices.Contains(truths, lower):
		c.add(s.about(Fault, "bool-word", "NCCL reads a number here, and %s is read as 0: the opposite of what is meant", show(text)).do("write %s=1", s.Name))
		return
	case !ok && slices.Contains(lies, lower):
		c.add(s.about(Odd, "bool-word", "NCCL reads a number here; %s becomes 0 only because it is no number", show(text)).do("write %s=0", s.Name))
		return
	case !ok:
		c.add(s.about(Fault, "number", "%s is no number: NCCL reads 0", show(text)).do("give %s", orNumber(v.choices())))
		return
	case rest != "" && unitPattern.MatchString(rest):
		f := s.about(Fault, "unit", "NCCL knows no units: %s is read as %d", show(text), n)
		if scale := sizeUnits[strings.ToLower(strings.TrimSpace(rest))[0]]; scale > 0 && v.Type == typeBytes && n < 1<<22 && n > -1<<22 {
			f = f.do("write %s=%d", s.Name, n*scale)
		} else {
			f = f.do("write a plain number%s", inUnit(v))
		}
		c.add(f)
		return
	case rest != "":
		c.add(s.about(Fault, "number", "NCCL stops reading at %s and takes %d", show(rest), n).do("give one whole number: %s", orNumber(v.choices())))
		return
	}
	if plain, err := strconv.ParseInt(text, 10, 64); err == nil && plain != n {
		c.add(s.about(Fault, "octal", "a 0 in front makes it octal: %s is read as %d", text, n).do("write %s=%d", s.Name, plain))
		return
	}
	c.inRange(n)
}

func orNumber(choices string) string {
	if choices == "" {
		return "any whole number"
	}
	return choices
}

func inUnit(v *Variable) string {
	switch {
	case v.Type == typeBytes:
		return " of bytes"
	case v.Unit != "":
		return " (" + v.Unit + ")"
	}
	return ""
}

func (c *checker) inRange(n int64) {
	s, v := c.s, c.v
	switch {
	case v.Name == "NCCL_IB_TIMEOUT" && (n == 0 || n > 31):
		c.add(s.about(Fault, "range", "%d lets the NIC wait for ever: a dead link becomes a hang without an error", n).do("use 20 to 23"))
	case v.Name == "NCCL_IB_TIMEOUT" && n > 0 && n < 14:
		c.add(s.about(Fault, "range", "%d is an exponent: a try waits only %.2g ms, so a busy fabric looks broken (error 12)", n, 4.096e-3*float64(int64(1)<<n)).do("use 20 to 23"))
	case v.Name == "NCCL_IB_TIMEOUT" && n > 24:
		c.add(s.about(Odd, "range", "a dead link is told only after %.0f minutes with 7 tries", 7*4.096e-6*float64(int64(1)<<n)/60).do("use 20 to 23"))
	case !v.allows(n) && v.Type == typeFlag:
		c.add(s.about(Odd, "range", "only 0 and 1 are meant here; some switches take any other number for on, some for off").do("write 0 or 1"))
	case !v.allows(n):
		c.add(s.about(Fault, "range", "%d is out of range", n).do("allowed: %s", v.choices()))
	case v.Type == typeThreads && n > 0 && n%32 != 0:
		c.add(s.about(Fault, "range", "%d is no multiple of 32: NCCL takes the largest value instead", n).do("use a multiple of 32"))
	case v.Type == typePow2 && n > 0 && n&(n-1) != 0:
		c.add(s.about(Odd, "range", "%d is no power of two", n).do("use a power of two"))
	}
}

// text judges the types that are words, names and paths.
func (c *checker) text(text string) {
	switch c.v.Type {
	case typeWord, typeExact:
		c.word(text)
	case typeWords:
		c.list(text)
	case typeBool:
		c.bool(text)
	case typeLevel:
		c.level(text)
	case typeNet:
		c.network(text)
	case typePlugin, typePath, typeFile:
		c.file(text)
	default:
		if problem, advice := c.form(text); problem != "" {
			c.add(c.s.about(Fault, "value", "%s", problem).do("%s", advice))
		}
	}
}

// form judges the rarer types; it returns what is wrong and what to do.
func (c *checker) form(text string) (problem, advice string) {
	switch c.v.Type {
	case typeHostPort:
		host, port, err := splitHostPort(text)
		if n, perr := strconv.Atoi(port); err || host == "" || perr != nil || n < 1 || n > 65535 {
			return show(text) + " is not host:port", "write host:port, or [address]:port for IPv6"
		}
	case typeCIDR:
		if _, err := netip.ParsePrefix(text); err != nil {
			return show(text) + " is no address range; NCCL ignores it", "write address/bits, for example 10.1.0.0/16"
		}
	case typeCTAPolicy:
		return c.ctaPolicy(text)
	case typeNetDevs:
		if up := strings.ToUpper(text); up != "AUTO" && up != "ALL" && !maxPattern.MatchString(text) {
			return show(text) + " is not known; NCCL takes AUTO", "use AUTO, ALL or MAX:n"
		}
	case typeMerge:
		if strings.ContainsAny(text, "=^ |*") {
			return "names stand as they are here: no =, ^, * or blanks", "write mlx5_0,mlx5_1;mlx5_2,mlx5_3"
		}
	case typeCPUSet:
		if !cpusetPattern.MatchString(text) {
			return show(text) + " is no list of cores; NCCL ignores it", "write numbers and ranges: 0-3,8"
		}
	case typeSixInts:
		fields := strings.Fields(text)
		for _, f := range fields {
			if _, err := strconv.ParseInt(f, 10, 64); err != nil {
				return "reading stops at " + show(f) + ", the rest stays as it was", "write six numbers with blanks between"
			}
		}
		if len(fields) > 6 {
			return "only six numbers are read", "write six numbers with blanks between"
		}
	case typeHex64:
		if _, err := strconv.ParseUint(text, 0, 64); err != nil {
			return show(text) + " is no 64-bit number; NCCL takes its own", "write a number, for example 0x5eed or the job's number"
		}
	}
	return "", ""
}

func splitHostPort(text string) (host, port string, bad bool) {
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return text, "", true
	}
	host, port = text[:i], text[i+1:]
	if bare, ok := strings.CutPrefix(host, "["); ok {
		bare, ok = strings.CutSuffix(bare, "]")
		return bare, port, !ok
	}
	return host, port, strings.ContainsAny(host, ": \t,")
}

func (c *checker) ctaPolicy(text string) (problem, advice string) {
	const use = "use DEFAULT, EFFICIENCY or ZERO"
	if text[0] >= '0' && text[0] <= '9' {
		if text != "0" && text != "1" && text != "2" {
			return show(text) + ": as a number only 0, 1 and 2 are read", use
		}
		return "", ""
	}
	words := strings.Split(strings.ToUpper(text), "|")
	for _, w := range words {
		if !slices.Contains(c.v.words(), w) {
			return show(w) + " is no policy; NCCL ignores it", use
		}
	}
	if slices.Contains(words, "ZERO") && slices.Contains(words, "EFFICIENCY") {
		return "ZERO and EFFICIENCY exclude each other: NCCL drops EFFICIENCY", "name one"
	}
	return "", ""
}

func (c *checker) word(text string) {
	s, v := c.s, c.v
	words := v.words()
	for _, w := range words {
		if w == text || v.Type == typeWord && strings.EqualFold(w, text) {
			return
		}
		if strings.EqualFold(w, text) {
			c.add(s.about(Fault, "case-value", "NCCL knows %s only in capitals and ignores %s without a word", w, show(text)).do("write %s=%s", s.Name, w))
			return
		}
	}
	effect := "NCCL takes the default"
	if v.Name == "NCCL_DEBUG" {
		effect = "NCCL logs nothing at all"
	}
	f := s.about(Fault, "value", "%s is not known here: %s", show(text), effect).do("use %s", strings.Join(words, ", "))
	if near := nearestWord(text, words); near != "" {
		f = f.do("was %s meant?", near)
	}
	c.add(f)
}

func (c *checker) list(text string) {
	s, v := c.s, c.v
	words := v.words()
	for i, w := range strings.Split(strings.TrimPrefix(text, "^"), ",") {
		w = strings.TrimSpace(w)
		if w == "" || slices.ContainsFunc(words, func(k string) bool { return strings.EqualFold(k, w) }) {
			continue
		}
		f := s.about(Fault, "value", "%s is not known: since 2.30.7 the whole list then counts as not set, before only that word", show(w))
		switch near := nearestWord(w, words); {
		case i > 0 && w[0] == '^':
			f.Text, f.Advice = "^ counts only in front of the whole list", "write ^ once, at the start"
		case strings.ContainsAny(w, ";|: +"):
			f.Advice = "put commas between the words"
		case near != "":
			f.Advice = "was " + near + " meant?"
		default:
			f.Advice = "known: " + strings.Join(words, ", ")
		}
		c.add(f)
		return
	}
}

func (c *checker) bool(text string) {
	s := c.s
	known := slices.Contains([]string{"1", "0", "T", "F", "TRUE", "FALSE"}, strings.ToUpper(text))
	isWord := known && text != "0" && text != "1"
	switch {
	case !known && slices.Contains(truths, strings.ToLower(text)):
		c.add(s.about(Fault, "bool-word", "%s is not understood and counts as off", show(text)).do("write %s=1", s.Name))
	case !known:
		c.add(s.about(Fault, "value", "%s is not understood: NCCL takes the default", show(text)).do("write 0 or 1"))
	case isWord && c.before(2, 30, 7) && strings.ToUpper(text)[0] == 'T':
		c.add(s.about(Fault, "bool-word", "before 2.30.7 a number is read here, and %s becomes 0", show(text)).do("write %s=1", s.Name))
	case isWord && c.version.IsZero() && strings.ToUpper(text)[0] == 'T':
		c.add(s.about(Odd, "bool-word", "words are understood only from 2.30.7 on; before, %s becomes 0", show(text)).do("write %s=1, which every version reads", s.Name))
	}
}

func (c *checker) level(text string) {
	s, v := c.s, c.v
	words := v.words()
	if slices.Contains(words, text) {
		return
	}
	old := []string{"LOC", "PIX", "PXB", "PHB", "SYS", "SYS"}
	n, _, digits, _ := cInt(text)
	switch up := strings.ToUpper(text); {
	case slices.Contains(words, up):
		c.add(s.about(Fault, "case-value", "NCCL knows %s only in capitals and ignores %s without a word", up, show(text)).do("write %s=%s", s.Name, up))
	case digits && text[0] >= '0' && text[0] <= '9':
		word := old[min(max(n, 0), 5)]
		c.add(s.about(Odd, "legacy-digit", "digits are an old scale, not NCCL's list of distances: %s means %s", text, word).do("write %s=%s", s.Name, word))
	case up == "NODE":
		c.add(s.about(Fault, "value", "NODE is a word of nvidia-smi; NCCL does not know it and ignores the setting").do("use PHB (same NUMA node) or SYS"))
	default:
		f := s.about(Fault, "value", "%s is no distance: NCCL ignores the setting", show(text)).do("use %s", strings.Join(words, ", "))
		if near := nearestWord(text, words); near != "" && len(text) > 2 {
			f = f.do("was %s meant?", near)
		}
		c.add(f)
	}
}

func (c *checker) network(text string) {
	s := c.s
	meant := map[string]string{"TCP": "Socket", "ETHERNET": "Socket", "ETH": "Socket", "INFINIBAND": "IB", "ROCE": "IB", "VERBS": "IB", "RDMA": "IB", "RDMAV2": "IB"}
	switch up := strings.ToUpper(text); {
	case up == "IB" || up == "SOCKET":
	case looksHCA(text) || looksInterface(text):
		c.add(s.about(Fault, "wrong-kind", "%s is a device; here stands the name of a network", show(text)).do("devices go into NCCL_IB_HCA or NCCL_SOCKET_IFNAME"))
	case strings.ContainsAny(text, ",;^ "):
		c.add(s.about(Fault, "value", "only one name can stand here").do("use IB, Socket or the name of a plugin's network"))
	case meant[up] != "":
		c.add(s.about(Fault, "value", "no network has the name %s: creation of a communicator fails", show(text)).do("write %s=%s", s.Name, meant[up]))
	case distance(up, "SOCKET") <= 2:
		c.add(s.about(Fault, "value", "no network has the name %s: creation of a communicator fails", show(text)).do("was Socket meant?"))
	}
}

func (c *checker) file(text string) {
	s, v := c.s, c.v
	machine := c.s.machine
	switch {
	case strings.HasPrefix(text, "~"):
		c.add(s.about(Fault, "tilde", "~ is a matter of the shell; here it is part of the name").do("write the whole path"))
	case v.Name == "NCCL_DEBUG_FILE" && !strings.HasPrefix(text, "/dev/") && !strings.Contains(text, "%p"):
		c.add(s.about(Odd, "shared-file", "without %%p all processes of a host write, and cut, the same file").do("write %s.%%h.%%p", strings.TrimSuffix(text, ".%h")))
	case v.Type == typeFile && v.Name != "NCCL_CONF_FILE" && machine != nil && machine.Exists != nil && !machine.Exists(text):
		c.add(s.about(Fault, "missing-file", "there is no such file on this machine").do("correct the path, or unset it"))
	}
}

// torch judges values as PyTorch reads them, which is not as NCCL does.
func (c *checker) torch(text string) {
	s, v := c.s, c.v
	lower := strings.ToLower(text)
	const stops = "PyTorch stops with an error at start"
	switch v.Type {
	case typeTorchBool:
		if !slices.Contains(torchTrue, lower) && !slices.Contains(torchFalse, lower) {
			c.add(s.about(Fault, "value", "%s is neither yes nor no: %s", show(text), stops).do("write 0 or 1"))
		}
	case typeTorch01:
		if text != "0" && text != "1" {
			c.add(s.about(Fault, "value", "only 0 and 1 are read here; %s is ignored", show(text)).do("write 0 or 1"))
		}
	case typeTorchWord:
		if !slices.Contains(v.words(), strings.ToUpper(text)) {
			c.add(s.about(Fault, "value", "%s is not known: %s", show(text), stops).do("use %s", strings.Join(v.words(), ", ")))
		}
	case typeTorchInt:
		digits := strings.TrimLeft(strings.TrimLeft(text, "+-"), "0123456789")
		number := strings.TrimPrefix(text[:len(text)-len(digits)], "+")
		n, err := strconv.ParseInt(number, 10, 32)
		switch {
		case err != nil:
			c.add(s.about(Fault, "value", "%s is no number: %s", show(text), stops).do("give %s", orNumber(v.choices())))
		case digits != "":
			c.add(s.about(Odd, "unit", "only the digits are read: %d%s", n, inUnit(v)).do("write a plain number%s", inUnit(v)))
		case !v.allows(n):
			c.add(s.about(Fault, "range", "%d is out of range", n).do("allowed: %s", v.choices()))
		}
	case typePath:
		c.file(text)
	}
}

// show quotes a value and keeps it short.
func show(s string) string {
	if len(s) > 60 {
		s = s[:57] + "…"
	}
	return fmt.Sprintf("%q", s)
}
