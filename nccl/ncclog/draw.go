package ncclog

import (
	"fmt"
	"slices"
	"strings"
)

// folding: a job of thousands of ranks must still fit a screen.
const (
	maxDrawn   = 4  // different rings or trees
	maxTreeRow = 24 // rows of one tree
)

// ringText writes the order of a ring: runs folded, "=>" where it goes to another host.
func ringText(order []int, host map[int]string, cut bool) string {
	text := chainText(order, host)
	if cut {
		return text + " ... (printed only in part)"
	}
	if len(order) > 1 {
		text += arrow(host, order[len(order)-1], order[0]) + fmt.Sprint(order[0])
	}
	return text
}

func arrow(host map[int]string, a, b int) string {
	if host[a] != host[b] && host[a] != "" && host[b] != "" {
		return " => "
	}
	return " - "
}

// chainText writes ranks one after another; four or more that count up or down by one on a host are "0..7".
func chainText(order []int, host map[int]string) string {
	var b strings.Builder
	for i := 0; i < len(order); {
		if i > 0 {
			b.WriteString(arrow(host, order[i-1], order[i]))
		}
		j, step := i, 0
		if i+1 < len(order) {
			step = order[i+1] - order[i]
		}
		for (step == 1 || step == -1) && j+1 < len(order) && order[j+1]-order[j] == step && host[order[j+1]] == host[order[i]] {
			j++
		}
		if j-i < 3 {
			j = i
		}
		fmt.Fprint(&b, order[i])
		if j > i {
			fmt.Fprintf(&b, "..%d", order[j])
		}
		i = j + 1
	}
	return b.String()
}

// ringLines are the different rings with the channels that use them.
func (c *Comm) ringLines() []string {
	host := c.hostOf()
	return folded(len(c.Rings), func(i int) (int, string) {
		return c.Rings[i].Channel, ringText(c.Rings[i].Order, host, c.Rings[i].Cut)
	})
}

// treeLines are the different trees, drawn.
func (c *Comm) treeLines() []string {
	host := c.hostOf()
	return folded(len(c.Trees), func(i int) (int, string) { return c.Trees[i].Channel, c.Trees[i].text(host) })
}

// folded puts equal pictures together, with the channels in front.
func folded(n int, picture func(i int) (channel int, text string)) []string {
	type group struct {
		text     string
		channels []int
	}
	var groups []*group
	for i := range n {
		ch, text := picture(i)
		k := slices.IndexFunc(groups, func(g *group) bool { return g.text == text })
		if k < 0 {
			groups = append(groups, &group{text: text})
			k = len(groups) - 1
		}
		groups[k].channels = append(groups[k].channels, ch)
	}
	var out []string
	for i, g := range groups {
		if i == maxDrawn && len(groups) > maxDrawn+1 {
			out = append(out, fmt.Sprintf("... %d more, see --json", len(groups)-i))
			break
		}
		label := fmt.Sprintf("%s %s: ", plural("channel", len(g.channels)), ranksText(g.channels))
		for j, row := range strings.Split(g.text, "\n") {
			if j > 0 {
				label = strings.Repeat(" ", len(label))
			}
			out = append(out, label+row)
		}
	}
	return out
}

// text draws a tree: chains on one row, a row for each branch.
func (t *Tree) text(host map[int]string) string {
	children := map[int][]int{}
	var roots []int
	for rank, up := range t.Parent {
		switch {
		case up == -1 || up >= 0 && (up >= len(t.Parent) || t.Parent[up] == -2): // the rank above is not in the log
			roots = append(roots, rank)
		case up >= 0:
			children[up] = append(children[up], rank)
		}
	}
	d := treeDrawing{children: children, host: host}
	for _, root := range roots {
		first := ""
		if up := t.Parent[root]; up >= 0 {
			first = fmt.Sprintf("(%d, not in the log)", up) + arrow(host, up, root)
		}
		d.draw(root, first, "", 0)
	}
	if len(roots) == 0 {
		return "no root in the log"
	}
	if len(d.rows) > maxTreeRow {
		d.rows = append(d.rows[:maxTreeRow], fmt.Sprintf("... %d more rows, see --json", len(d.rows)-maxTreeRow))
	}
	return strings.Join(d.rows, "\n")
}

type treeDrawing struct {
	children map[int][]int
	host     map[int]string
	rows     []string
}

func (d *treeDrawing) draw(rank int, first, rest string, depth int) {
	chain := []int{rank}
	for len(d.children[rank]) == 1 && len(chain) < 1<<16 {
		rank = d.children[rank][0]
		chain = append(chain, rank)
	}
	d.rows = append(d.rows, first+chainText(chain, d.host))
	kids := d.children[rank]
	if depth > 200 || len(kids) == 0 {
		return
	}
	for i, k := range kids {
		mark, below := "+-", "| "
		if i == len(kids)-1 {
			mark, below = "`-", "  "
		}
		way := " "
		if d.host[k] != d.host[rank] && d.host[k] != "" && d.host[rank] != "" {
			way = "=> "
		}
		d.draw(k, rest+mark+way, rest+below+strings.Repeat(" ", len(way)), depth+1)
	}
}
