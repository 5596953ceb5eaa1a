package topo

import (
	"fmt"
	"slices"
	"strings"
)

// pairLinks is what joins two GPUs directly.
type pairLinks struct {
	a, b  *GPU
	count int
	gbs   *float64
}

// nvlinkBand draws NVLink at the bottom: a bar that the lanes of the GPUs lead to, and for direct links which GPU is joined to which. It returns where it ends.
func (p *picture) nvlinkBand(y float64) float64 {
	text := p.bandText()
	for _, l := range p.lanes {
		if l.gpu.C2C != nil {
			p.s.path(inkC2C, 2, false, l.x, l.y, l.x, l.top)
		}
	}
	if text == "" {
		return y - 14
	}
	const bar = 30.0
	for _, l := range p.lanes {
		if len(l.gpu.NVLinks) > 0 {
			p.s.path(inkNVLink, 1.5, false, l.x, l.y, l.x, y)
		}
	}
	p.s.rect(margin, y, p.s.width-2*margin, bar, fillNVSw, inkNVLink, 1.5)
	p.s.say(margin+10, y+6, p.s.width-2*margin-20, sizeHead, true, inkText, text)
	y += bar
	pairs := p.pairs()
	if len(pairs) == 0 {
		return y
	}
	if len(pairs) <= len(p.g.GPUs) {
		return p.pairList(pairs, y+8)
	}
	return p.pairMatrix(pairs, y+10)
}

// bandText says what NVLinks lead to; empty: there are none, or they are not known.
func (p *picture) bandText() string {
	var ends []string
	per := map[string][]string{}
	direct, hidden := false, false
	for i := range p.g.GPUs {
		g := &p.g.GPUs[i]
		toSwitch := 0
		for _, l := range g.NVLinks {
			switch l.Peer {
			case PeerSwitch:
				toSwitch += l.Count
				hidden = hidden || l.Target == HiddenTarget
			case PeerCPU:
				ends = append(ends, g.ID+" to its CPU")
			default:
				direct = true
			}
		}
		if toSwitch > 0 {
			key := fmt.Sprintf("%d NVLinks", toSwitch)
			if rate := linkRate(g.NVLinks[0], g); rate != nil {
				key += fmt.Sprintf(", %g GB/s", round(*rate*float64(toSwitch), 0))
			}
			per[key] = append(per[key], g.ID)
		}
	}
	if len(per) > 0 {
		name := "NVSwitch"
		if n := len(p.g.NVSwitches); n > 0 {
			name = fmt.Sprintf("%d × NVSwitch", n)
		} else if hidden {
			name = "NVSwitch (the driver does not show where the links end)"
		}
		keys := mapKeys(per)
		slices.Sort(keys)
		var parts []string
		for _, k := range keys {
			parts = append(parts, idList(per[k])+": "+k+" each")
		}
		ends = append([]string{name + " — " + strings.Join(parts, "; ")}, ends...)
	}
	if direct {
		ends = append(ends, "NVLink between GPUs")
	}
	return strings.Join(ends, "; ")
}

// pairs are the direct links, each pair once.
func (p *picture) pairs() (out []pairLinks) {
	for i := range p.g.GPUs {
		g := &p.g.GPUs[i]
		for _, l := range g.NVLinks {
			j := gpuAt(p.g, l.Target)
			if l.Peer == PeerSwitch || j < 0 || j == i {
				continue
			}
			peer := &p.g.GPUs[j]
			if !slices.ContainsFunc(out, func(x pairLinks) bool { return x.a == peer && x.b == g || x.a == g && x.b == peer }) {
				out = append(out, pairLinks{g, peer, l.Count, linkRate(l, g)})
			}
		}
	}
	return out
}

func (l pairLinks) text() string {
	text := fmt.Sprintf("NV%d", l.count)
	if l.gbs != nil {
		text += fmt.Sprintf(", %g GB/s", round(*l.gbs*float64(l.count), 1))
	}
	return text
}

// pairList draws a few pairs side by side.
func (p *picture) pairList(pairs []pairLinks, y float64) float64 {
	x := margin
	const w, h = 250.0, 30.0
	for _, l := range pairs {
		if x+w > p.s.width-margin {
			x, y = margin, y+h+8
		}
		p.s.rect(x, y, 56, h, fillGPU, inkLine, 1)
		p.s.say(x+8, y+6, 44, sizeText, true, inkText, l.a.ID)
		p.s.path(inkNVLink, 2, false, x+56, y+h-6, x+w-66, y+h-6)
		p.s.say(x+64, y+4, w-66-68, sizeText, false, inkNVLink, l.text())
		p.s.rect(x+w-66, y, 56, h, fillGPU, inkLine, 1)
		p.s.say(x+w-58, y+6, 44, sizeText, true, inkText, l.b.ID)
		x += w + 8
	}
	return y + h + 4
}

// pairMatrix draws many pairs as a table: links between row and column.
func (p *picture) pairMatrix(pairs []pairLinks, y float64) float64 {
	const cell, row, head = 96.0, 24.0, 64.0
	gpus := p.g.GPUs
	wide := min(cell, (p.s.width-2*margin-head)/float64(len(gpus)))
	for i := range gpus {
		p.s.say(margin+head+float64(i)*wide+4, y, wide-6, sizeText, true, inkText, gpus[i].ID)
		p.s.say(margin+4, y+row*float64(i+1)+4, head-6, sizeText, true, inkText, gpus[i].ID)
		for j := range gpus {
			at, cy := margin+head+float64(j)*wide, y+row*float64(i+1)
			k := slices.IndexFunc(pairs, func(l pairLinks) bool {
				return l.a == &gpus[i] && l.b == &gpus[j] || l.a == &gpus[j] && l.b == &gpus[i]
			})
			if k < 0 {
				p.s.rect(at, cy, wide, row, nil, inkLine, 0.7)
				continue
			}
			p.s.rect(at, cy, wide, row, fillNVSw, inkLine, 0.7)
			p.s.say(at+4, cy+4, wide-6, sizeText, false, inkNVLink, pairs[k].text())
		}
	}
	return y + row*float64(len(gpus)+1) + 4
}
