package ncclenv

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var (
	hcaName       = regexp.MustCompile(`(?i)^(mlx[45]|bnxt_re|irdma|rocep|ibp\d|hfi1|efa|rdmap|qedr|erdma|hns|siw|rxe)`)
	interfaceName = regexp.MustCompile(`^(eth|ens|eno|enp|bond|team|wlan|docker|veth|br-|lo$|ib\d|ibs|enx|eth)`)
	endsInDigit   = regexp.MustCompile(`^(.*?)(\d+)$`)
)

func looksHCA(s string) bool       { return hcaName.MatchString(s) }
func looksInterface(s string) bool { return interfaceName.MatchString(s) }

// pattern is a value of NCCL_IB_HCA, NCCL_SOCKET_IFNAME and the like.
type pattern struct {
	not, exact bool
	items      []item
}

type item struct {
	text, name, port string
}

// parsePattern cuts a value as NCCL does: ^ and then = count only at the very start.
func parsePattern(text string) pattern {
	var p pattern
	text, p.not = strings.CutPrefix(text, "^")
	text, p.exact = strings.CutPrefix(text, "=")
	for _, t := range strings.Split(text, ",") {
		parts := strings.SplitN(t, ":", 3)
		if parts[0] == "" {
			continue // NCCL leaves it out, too
		}
		it := item{text: t, name: parts[0]}
		if len(parts) > 1 {
			it.port = parts[1]
		}
		p.items = append(p.items, it)
	}
	return p
}

func (p *pattern) hits(it item, name string) bool {
	return name == it.name || !p.exact && strings.HasPrefix(name, it.name)
}

// Selected returns those of names that a value of NCCL_IB_HCA or NCCL_SOCKET_IFNAME takes; ports are not looked at.
func Selected(value string, names []string) []string {
	p := parsePattern(value)
	var out []string
	for _, n := range names {
		hit := len(p.items) == 0 || slices.ContainsFunc(p.items, func(it item) bool { return p.hits(it, n) })
		if hit != p.not {
			out = append(out, n)
		}
	}
	return out
}

func (c *checker) pattern(text string) {
	s := c.s
	isHCA := c.v.Type == typeHCA
	if !isHCA && len(text) == 1 {
		c.add(s.about(Fault, "pattern", "a value of one letter is ignored").do("give the name, or its beginning"))
		return
	}
	p := parsePattern(text)
	if len(p.items) == 0 {
		c.add(s.about(Fault, "pattern", "no name stands in the list").do("give names with commas between"))
		return
	}
	for _, it := range p.items {
		if !c.item(it, isHCA) {
			return
		}
	}
	c.here(p, isHCA)
	if !p.exact && !HasFault(c.found) {
		c.prefixes(p, isHCA)
	}
}

// item judges one name of the list; false means that the whole value needs another look by its author first.
func (c *checker) item(it item, isHCA bool) bool {
	s := c.s
	fault := func(advice, format string, args ...any) bool {
		c.add(s.about(Fault, "pattern", format, args...).do("%s", advice))
		return false
	}
	switch {
	case strings.ContainsAny(it.name[:1], "=^"):
		return fault("write it once, at the very start: ^=a,b or =a,b", "%s stands inside the list and is taken for a letter of a name", show(it.name[:1]))
	case strings.ContainsAny(it.text, " \t"):
		return fault("no blanks: a,b", "a blank is part of the name %s, which no device has", show(it.name))
	case strings.ContainsAny(it.text, ";|"):
		return fault("put commas between the names", "only commas separate names, so %s is one name", show(it.name))
	case strings.ContainsAny(it.text, "*?[]{}()\\"):
		return fault("give the beginning of the name, which is enough, or all names after =", "neither * nor other patterns are understood: %s", show(it.name))
	case isHCA && it.port != "" && strings.Trim(it.port, "0123456789") != "":
		return fault("write name:port, ports from 1", "the port %s is no number and is read as 0", show(it.port))
	case isHCA && it.port != "" && strings.Trim(it.port, "0") == "":
		return fault("write name:port, ports from 1", "ports begin with 1")
	case isHCA && c.v.Name == "NCCL_IB_HCA" && looksInterface(it.name) && !looksHCA(it.name):
		c.add(s.about(Fault, "wrong-kind", "%s looks like an IP interface; here stand RDMA devices", show(it.name)).do("see ls /sys/class/infiniband; interfaces go into NCCL_SOCKET_IFNAME"))
		return false
	case !isHCA && looksHCA(it.name) && !looksInterface(it.name) && !strings.HasPrefix(it.name, "ibp"):
		c.add(s.about(Fault, "wrong-kind", "%s looks like an RDMA device; here stand IP interfaces", show(it.name)).do("see ip -br addr; RDMA devices go into NCCL_IB_HCA"))
		return false
	}
	return true
}

// here compares the pattern with the devices of this machine, where they are known.
func (c *checker) here(p pattern, isHCA bool) {
	s := c.s
	if s.machine == nil || isHCA && c.v.Name != "NCCL_IB_HCA" {
		return
	}
	names, kind := s.machine.Interfaces, "IP interface"
	if isHCA {
		names, kind = s.machine.HCAs, "RDMA device"
	}
	if len(names) == 0 {
		return
	}
	selected := slices.ContainsFunc(names, func(n string) bool {
		return p.not != slices.ContainsFunc(p.items, func(it item) bool { return p.hits(it, n) })
	})
	switch {
	case !selected && p.not:
		c.add(s.about(Fault, "no-match", "every %s of this machine is excluded", kind).do("exclude fewer"))
		return
	case !selected:
		c.add(s.about(Fault, "no-match", "no %s of this machine is meant; there are %s", kind, strings.Join(names, ", ")).do("correct the name"))
		return
	}
	for _, it := range p.items {
		if !slices.ContainsFunc(names, func(n string) bool { return p.hits(it, n) }) {
			c.add(s.about(Odd, "no-match", "no %s of this machine is meant by %s; there are %s", kind, show(it.name), strings.Join(names, ", ")).do("correct the name"))
		}
	}
}

// prefixes finds names that take more than they seem to: mlx5_1 takes mlx5_10, too.
func (c *checker) prefixes(p pattern, isHCA bool) {
	s := c.s
	var surprising []string
	for _, it := range p.items {
		m := endsInDigit.FindStringSubmatch(it.name)
		if m == nil || m[1] == "mlx" { // mlx5 is a family, and meant so
			continue
		}
		// Only one digit, and not 0, begins the names of other devices that machines really have.
		if n, _ := strconv.Atoi(m[2]); len(m[2]) != 1 || n == 0 {
			continue
		}
		surprising = append(surprising, it.name)
	}
	exact := strings.Repeat("^", bit(p.not)) + "=" + strings.TrimPrefix(s.Value, "^")
	if len(surprising) > 0 {
		first := surprising[0]
		text := show(first) + " is a beginning: it also means " + first + "0 to " + first + "9 where there are such"
		if others := c.alsoHit(p, surprising, isHCA); len(others) > 0 {
			text = "these names are beginnings: on this machine " + strings.Join(others, ", ") + " is meant, too"
		}
		c.add(Finding{ID: "prefix-match", Severity: Odd, Name: s.Name, Value: s.Value, From: s.From, Line: s.Line, Text: text}.do("for just these write %s=%s", s.Name, exact))
		return
	}
	for _, it := range p.items {
		if !isHCA && !p.not && endsInDigit.FindStringSubmatch(it.name) == nil && !slices.Contains([]string{"lo"}, it.name) {
			c.add(s.about(Note, "prefix-match", "%s is a beginning: every interface whose name begins so is meant (%s0, %s10, …), whether or not it reaches the other hosts", show(it.name), it.name, it.name).
				do("for one interface write %s==name", s.Name))
			return
		}
	}
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// alsoHit lists the devices of this machine that a surprising beginning takes besides the one of that name.
func (c *checker) alsoHit(p pattern, surprising []string, isHCA bool) []string {
	if c.s.machine == nil {
		return nil
	}
	names := c.s.machine.Interfaces
	if isHCA {
		names = c.s.machine.HCAs
	}
	var out []string
	for _, n := range names {
		named := slices.ContainsFunc(p.items, func(it item) bool { return it.name == n })
		if !named && slices.ContainsFunc(surprising, func(b string) bool { return strings.HasPrefix(n, b) }) {
			out = append(out, n)
		}
	}
	return out
}
