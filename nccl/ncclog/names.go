package ncclog

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ranksText writes 0,1,2,3,8 as "0-3,8".
func ranksText(ranks []int) string {
	sorted := slices.Clone(ranks)
	slices.Sort(sorted)
	sorted = slices.Compact(sorted)
	var b strings.Builder
	for i := 0; i < len(sorted); {
		j := i
		for j+1 < len(sorted) && sorted[j+1] == sorted[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		if sorted[i] < 0 {
			b.WriteByte('?')
		} else {
			b.WriteString(strconv.Itoa(sorted[i]))
		}
		if j > i {
			sep := "-"
			if j == i+1 {
				sep = ","
			}
			b.WriteString(sep + strconv.Itoa(sorted[j]))
		}
		i = j + 1
	}
	return b.String()
}

// hostList writes node001, node002, node003 as "node[001-003]"; names that do not count up stand one by one.
func hostList(hosts []string) string {
	hosts = slices.Clone(hosts)
	slices.Sort(hosts)
	hosts = slices.Compact(hosts)
	type group struct {
		head, tail string
		width      int
		numbers    []int
	}
	var groups []*group
	for _, h := range hosts {
		head, digits, tail := splitNumber(h)
		n, err := strconv.Atoi(digits)
		if err != nil {
			n = -1
		}
		i := slices.IndexFunc(groups, func(g *group) bool { return g.head == head && g.tail == tail && g.width == len(digits) })
		if i < 0 {
			groups = append(groups, &group{head, tail, len(digits), []int{n}})
		} else {
			groups[i].numbers = append(groups[i].numbers, n)
		}
	}
	var out []string
	for _, g := range groups {
		switch {
		case g.numbers[0] < 0:
			out = append(out, g.head)
		case len(g.numbers) == 1:
			out = append(out, fmt.Sprintf("%s%0*d%s", g.head, g.width, g.numbers[0], g.tail))
		default:
			var parts []string
			for i := 0; i < len(g.numbers); {
				j := i
				for j+1 < len(g.numbers) && g.numbers[j+1] == g.numbers[j]+1 {
					j++
				}
				part := fmt.Sprintf("%0*d", g.width, g.numbers[i])
				if j > i {
					part += fmt.Sprintf("-%0*d", g.width, g.numbers[j])
				}
				parts = append(parts, part)
				i = j + 1
			}
			out = append(out, g.head+"["+strings.Join(parts, ",")+"]"+g.tail)
		}
	}
	return strings.Join(out, ", ")
}

// splitNumber finds the last number in a name.
func splitNumber(s string) (head, digits, tail string) {
	end := len(s)
	for end > 0 && !isDigit(s[end-1]) {
		end--
	}
	if end == 0 {
		return s, "", ""
	}
	start := end
	for start > 0 && isDigit(s[start-1]) && end-start < 9 {
		start--
	}
	return s[:start], s[start:end], s[end:]
}

func isDigit(b byte) bool { return b-'0' < 10 }

// sizeName writes a size as NCCL's users do: 8 B, 64 KiB, 1.5 MiB.
func sizeName(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	f, i := float64(n), 0
	for f >= 1024 && i < len(units)-1 {
		f /= 1024
		i++
	}
	return strconv.FormatFloat(f, 'f', -1, 64)[:min(5, len(strconv.FormatFloat(f, 'f', -1, 64)))] + " " + units[i]
}

// dataTypes by ncclDataType_t.
var dataTypes = []string{"int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double", "bfloat16", "fp8e4m3", "fp8e5m2"}

// TypeName is the name of an ncclDataType_t, "type 99" for one that this package does not know.
func TypeName(t int) string {
	if t >= 0 && t < len(dataTypes) {
		return dataTypes[t]
	}
	return fmt.Sprintf("type %d", t)
}

// String writes a call as a person would: "AllReduce 1024 x float, op 0x28c".
func (c Call) String() string {
	s := fmt.Sprintf("%s %d x %s", c.Op, c.Count, TypeName(c.Type))
	switch c.Op {
	case "Broadcast", "Reduce", "Scatter", "Gather":
		s += fmt.Sprintf(" root %d", c.Root)
	case "Send", "Recv":
		s += fmt.Sprintf(" peer %d", c.Root)
	}
	return s
}

// String is "file:line".
func (l Line) String() string { return fmt.Sprintf("%s:%d", l.File, l.N) }

// Name is how the report calls a communicator: its id, or its size where none is printed.
func (c *Comm) Name() string {
	if c.ID != "" {
		return "0x" + c.ID
	}
	return fmt.Sprintf("#%d", c.Index)
}

// size is the number of ranks, or how many are in the log where that is not known.
func (c *Comm) size() int {
	if c.NRanks > 0 {
		return c.NRanks
	}
	return len(c.Ranks)
}

// hostOf is the host of each rank in the log.
func (c *Comm) hostOf() map[int]string {
	out := map[int]string{}
	for _, x := range c.Ranks {
		out[x.Rank] = x.Process.Host
	}
	return out
}

// gpu is the number that the rank's GPU has in tools that do not know CUDA_VISIBLE_DEVICES.
func (x *Rank) gpu() int {
	if x.NvmlDev >= 0 {
		return x.NvmlDev
	}
	return x.CudaDev
}

// State is how far a rank came.
func (x *Rank) State() string {
	switch {
	case x.End != nil:
		return strings.ToLower(x.End.Value)
	case x.Complete != nil:
		return "ready"
	case len(x.Milestones) > 0:
		return "stopped after " + x.Milestones[len(x.Milestones)-1].Value
	}
	return "-"
}

// NICs are the devices the rank's connections go over, by name where the log gives one.
func (x *Rank) NICs() []string {
	var out []string
	for _, e := range x.Edges {
		if e.NetDev < 0 {
			continue
		}
		if name := x.Process.nicName(e); !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

func (p *Process) nicName(e Edge) string {
	if e.Net == "Socket" {
		if e.NetDev < len(p.SocketIfs) {
			return p.SocketIfs[e.NetDev].Interface
		}
	} else {
		for _, n := range p.NICs {
			if n.Index == e.NetDev && (len(n.Merged) > 0 || !n.Virtual) {
				return n.Name
			}
		}
	}
	return fmt.Sprintf("%s dev %d", e.Net, e.NetDev)
}

// GDRUse says whether the rank's connections over the network touch GPU memory directly: "on", "off", "mixed", "" no such connection.
func (x *Rank) GDRUse() string {
	on, off := false, false
	for _, e := range x.Edges {
		if e.Transport == "NET" || e.Transport == "COLLNET" {
			on, off = on || e.GDR, off || !e.GDR
		}
	}
	switch {
	case on && off:
		return "mixed"
	case on:
		return "on"
	case off:
		return "off"
	}
	return ""
}
