package topo

import (
	"regexp"
	"slices"
	"strings"
)

var (
	lspciStart = regexp.MustCompile(`^[ |]*[-+\\]+\[([0-9a-f]{4,8}:)?[0-9a-f]{2}(-[0-9a-f]{2})?\]-`)
	lspciItem  = regexp.MustCompile(`^([0-9a-f]{2})\.([0-7])`)
	lspciBus   = regexp.MustCompile(`^-\[((?:[0-9a-f]{4,8}:)?)([0-9a-f]{2})(?:-[0-9a-f]{2})?\]`)
	lspciRoot  = regexp.MustCompile(`^\[((?:[0-9a-f]{4,8}:)?)([0-9a-f]{2})(?:-[0-9a-f]{2})?\]`)
	lspciIDs   = regexp.MustCompile(`\[([0-9a-f]{4}):([0-9a-f]{4})\]`)
)

// lspciBranch is a place where a bus forks: lines below go on at the same column.
type lspciBranch struct {
	bus    string // "0000:01"; empty: the level of host bridges
	parent string // bridge above that bus
	root   string
}

type lspciReader struct {
	name string
	g    *Graph
	at   map[int]lspciBranch // by column
}

// readLspci reads what lspci -tv draws; nil: the text has no such tree.
func readLspci(lines []textLine, name string) *Graph {
	r := &lspciReader{name: name, g: &Graph{Source: name, Form: FormFull}, at: map[int]lspciBranch{}}
	found := false
	for _, l := range lines {
		text := strings.TrimRight(l.text, " ")
		switch {
		case lspciStart.MatchString(text):
			found = true
			r.line(text, l.n)
		case found && strings.ContainsAny(strings.TrimLeft(text, " |"), "+\\") && strings.IndexAny(text, "+\\") == len(text)-len(strings.TrimLeft(text, " |")):
			r.line(text, l.n)
		}
		if len(r.g.PCI) > maxXMLNodes {
			break
		}
	}
	if !found || len(r.g.PCI) == 0 {
		return nil
	}
	r.finish()
	return r.g
}

// line reads one line from its first branch on.
func (r *lspciReader) line(s string, n int) {
	col := len(s) - len(strings.TrimLeft(s, " |"))
	branch, ok := r.at[col]
	rest := s[col:]
	if strings.HasPrefix(rest, "-") { // the first line: -[0000:00]-+- or -+-[0000:ff]-
		branch, ok = lspciBranch{}, true
		if strings.HasPrefix(rest, "-+-") {
			col, rest = col+1, rest[1:]
		} else {
			rest = "+" + rest // as if it were a fork of its own
			col--
		}
		r.at[col] = branch
	}
	if !ok || len(rest) < 3 {
		r.g.note("lspci-line", where(r.name, n), "a branch that hangs nowhere: the drawing is damaged here")
		return
	}
	r.children(rest, col, branch, n)
}

// children reads "+-00.0-[01-05]--+-…": one entry of a bus, and what is below it.
func (r *lspciReader) children(s string, col int, b lspciBranch, n int) {
	for depth := 0; depth < maxDepth; depth++ {
		for c := range r.at { // what was further right belongs to lines above
			if c > col {
				delete(r.at, c)
			}
		}
		skip := len(s) - len(strings.TrimLeft(s, "+\\-"))
		s, col = s[skip:], col+skip
		if root := lspciRoot.FindStringSubmatch(s); root != nil {
			bus := domainOf(root[1], "0000") + ":" + root[2]
			b = lspciBranch{bus: bus, root: "pci" + bus}
			s, col = s[len(root[0]):], col+len(root[0])
			s, col, b = r.below(s, col, b)
			if s == "" {
				return
			}
			continue
		}
		item := lspciItem.FindStringSubmatch(s)
		if item == nil || b.bus == "" {
			if strings.TrimSpace(s) != "" {
				r.g.note("lspci-line", where(r.name, n), "not understood: "+s)
			}
			return
		}
		f := Function{BusID: b.bus + ":" + item[1] + "." + item[2], Parent: b.parent, Root: b.root, Role: RoleOther}
		s, col = s[len(item[0]):], col+len(item[0])
		bus := lspciBus.FindStringSubmatch(s)
		if bus == nil {
			describe(&f, strings.TrimSpace(s))
			r.g.PCI = append(r.g.PCI, f)
			return
		}
		f.Role = RoleBridge
		r.g.PCI = append(r.g.PCI, f)
		domain, _, _ := strings.Cut(b.bus, ":")
		b = lspciBranch{bus: domainOf(bus[1], domain) + ":" + bus[2], parent: f.BusID, root: b.root}
		s, col = s[len(bus[0]):], col+len(bus[0])
		s, col, b = r.below(s, col, b)
		if s == "" {
			return
		}
	}
}

func domainOf(s, otherwise string) string {
	s = strings.TrimSuffix(s, ":")
	if s == "" {
		return otherwise
	}
	if id, ok := BusID(s + ":00:00.0"); ok {
		domain, _, _ := strings.Cut(id, ":")
		return domain
	}
	return otherwise
}

// below goes over the dashes after a bus and remembers a fork; an empty rest: nothing is on that bus.
func (r *lspciReader) below(s string, col int, b lspciBranch) (string, int, lspciBranch) {
	dashes := len(s) - len(strings.TrimLeft(s, "-"))
	s, col = s[dashes:], col+dashes
	if strings.HasPrefix(s, "+") {
		r.at[col] = b
	}
	if strings.TrimSpace(s) == "" {
		return "", col, b
	}
	return s, col, b
}

// describe takes what lspci says about a device in words.
func describe(f *Function, words string) {
	f.Label = words
	if ids := lspciIDs.FindStringSubmatch(words); ids != nil {
		f.Vendor, f.Device = "0x"+ids[1], "0x"+ids[2]
	}
	has := func(any ...string) bool {
		for _, w := range any {
			if strings.Contains(words, w) {
				return true
			}
		}
		return false
	}
	switch {
	case has("NVSwitch", "NVLink Switch", "GA100 [A100 NVSwitch]", "GH100 [H100 NVSwitch]"):
		f.Role = RoleNVSwitch
	case has("NVIDIA") && !has("Audio", "USB", "UCSI", "Type-C", "Mellanox", "ConnectX", "BlueField", "Bridge", "Host", "Memory", "MT2", "MT4"):
		f.Role = RoleGPU
	case has("ConnectX", "BlueField", "Elastic Fabric Adapter", "[EFA]", "Omni-Path", "BCM57", "BCM5760", "E810", "Thor", "MT27", "MT28", "MT29", "MT4"):
		f.Role = RoleNIC
	}
}

// finish lists GPUs and NICs, and leaves out devices that matter to no path.
func (r *lspciReader) finish() {
	needed := map[string]bool{}
	t := newTree(r.g)
	for i := range r.g.PCI {
		f := &r.g.PCI[i]
		switch f.Role {
		case RoleGPU:
			r.g.GPUs = append(r.g.GPUs, GPU{BusID: f.BusID, Name: f.Label})
		case RoleNIC:
			r.g.NICs = append(r.g.NICs, NIC{BusID: f.BusID})
		case RoleNVSwitch:
			r.g.NVSwitches = append(r.g.NVSwitches, NVSwitch{BusID: f.BusID})
		default:
			continue
		}
		needed[f.BusID] = true
		for _, up := range t.above(f) {
			needed[up.BusID] = true
		}
	}
	var kept []Function
	for _, f := range r.g.PCI {
		if needed[f.BusID] {
			kept = append(kept, f)
		}
	}
	r.g.PCI = kept
	slices.SortStableFunc(r.g.NICs, func(a, b NIC) int { return strings.Compare(a.BusID, b.BusID) })
	r.g.note("lspci-only", r.name, "lspci -tv has neither NUMA nodes nor link speeds; devices are recognised by the words of their names")
	r.g.nameAll()
	r.g.checkTree()
}
