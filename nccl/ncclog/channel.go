package ncclog

import "bytes"

// edgeKey is what makes a connection different from another one of the same rank.
type edgeKey struct {
	channel, conn int16
	from, to      int32
	receive       bool
	via           uint32 // of equal connections over different ways, e.g. after a second communicator that was not told apart
}

// channel takes "Channel 00/0 : 0[0] -> 1[1] via …" and the order of a ring, "Channel 00/24 : 0 1 2".
func channel(r *Reader, t *thread, msg, rest []byte) {
	c := cursor{b: rest}
	e := Edge{Channel: c.num(), Conn: -1, NetDev: -1, ProxyRank: -1}
	total := -1
	if c.try("/") {
		total = c.num()
		e.Conn = total
	}
	if c.bad || !c.lit(" :") {
		return
	}
	from := c.num()
	if c.bad || e.Channel < 0 || e.Channel >= maxChannels || from < 0 || from >= maxRanks {
		return
	}
	if !c.try("[") {
		r.ringOrder(t, e.Channel, from, c.b, msg)
		return
	}
	c.until("] -> ")
	e.From, e.To = from, c.num()
	c.until("] ")
	if c.try("[send] ") {
		e.Dir = "send"
	} else if c.try("[receive] ") {
		e.Dir = "receive"
	}
	if c.try("direct shared memory") {
		e.Transport, e.Via = "SHM", "direct shared memory"
	} else if c.lit("via ") && !c.bad {
		r.via(&e, bytes.TrimRight(c.b, " "))
	}
	if c.bad || e.Transport == "" || e.To < 0 || e.To >= maxRanks {
		return
	}
	me := e.From
	if e.Dir == "receive" {
		me = e.To
	}
	r.addEdge(r.rankNumber(t, me), e)
}

func (r *Reader) addEdge(x *rank, e Edge) {
	k := edgeKey{int16(e.Channel), int16(e.Conn), int32(e.From), int32(e.To), e.Dir == "receive", hash(e.Via)}
	if _, ok := x.edges[k]; ok {
		return
	}
	if len(x.Edges) >= maxEdges {
		r.drop("connections")
		return
	}
	if x.edges == nil {
		x.edges = make(map[edgeKey]struct{}, 64)
	}
	x.edges[k] = struct{}{}
	e.At = r.place()
	x.Edges = append(x.Edges, e)
}

func hash(s string) uint32 {
	h := uint32(2166136261)
	for i := 0; i < len(s); i++ {
		h = (h ^ uint32(s[i])) * 16777619
	}
	return h
}

// via reads what follows the word: "P2P/CUMEM/read", "NET/AWS Libfabric/0(8)/GDRDMA/Shared".
func (r *Reader) via(e *Edge, b []byte) {
	i := bytes.IndexByte(b, '/')
	if i <= 0 {
		return
	}
	e.Via, e.Transport = r.str(b), r.str(b[:i])
	if e.Transport != "NET" && e.Transport != "COLLNET" {
		return
	}
	c := cursor{b: b[i+1:]}
	e.Net = r.str(c.until("/"))
	e.NetDev = c.num()
	if c.bad {
		e.NetDev = -1
		return
	}
	if c.try("(") {
		e.ProxyRank = c.num()
		c.try(")")
	}
	e.GDR, e.Shared = contains(c.b, "/GDRDMA"), contains(c.b, "/Shared")
}

// collnetChannel takes "CollNet 05/0 : 5 [receive] via COLLNET/SHARP/5/GDRDMA".
func collnetChannel(r *Reader, t *thread, msg, rest []byte) {
	c := cursor{b: rest}
	e := Edge{Channel: c.num(), NetDev: -1, ProxyRank: -1}
	c.lit("/")
	e.Conn = c.num()
	c.lit(" :")
	e.From = c.num()
	e.To = e.From
	if c.try(" [send] ") {
		e.Dir = "send"
	} else if c.try(" [receive] ") {
		e.Dir = "receive"
	}
	if !c.lit("via ") || e.Channel < 0 || e.Channel >= maxChannels || e.From < 0 || e.From >= maxRanks {
		return
	}
	if r.via(&e, bytes.TrimRight(c.b, " ")); e.Transport != "" {
		r.addEdge(r.rankNumber(t, e.From), e)
	}
}

// ringOrder keeps the order of the ranks on one channel, which rank 0 prints.
func (r *Reader) ringOrder(t *thread, ch, first int, rest, msg []byte) {
	x := r.rankNumber(t, first)
	for i := range x.rings {
		if x.rings[i].Channel == ch {
			return
		}
	}
	if len(x.rings) >= maxKinds {
		r.drop("rings")
		return
	}
	ring := Ring{Channel: ch, Order: []int{first}, Cut: r.torn}
	c := cursor{b: rest}
	for {
		c.blanks()
		if len(c.b) == 0 {
			break
		}
		n := c.num()
		if c.bad || n < 0 || n >= maxRanks {
			ring.Cut = true
			break
		}
		ring.Order = append(ring.Order, n)
	}
	ring.At = r.evidence(msg)
	x.rings = append(x.rings, ring)
	r.milestone(x, "channels", msg)
}

// trees takes "Trees [0] 1/-1/-1->0->-1 [1] …".
func trees(r *Reader, t *thread, msg, rest []byte) {
	r.treeList(t, at(msg[len("Trees "):]), false)
}

func nvlsTrees(r *Reader, t *thread, msg, rest []byte) {
	r.treeList(t, at(rest), true)
}

func (r *Reader) treeList(t *thread, c *cursor, nvls bool) {
	var x *rank
	for ch := 0; ; ch++ {
		c.blanks()
		if len(c.b) == 0 {
			return
		}
		link := TreeLink{Channel: ch}
		if c.try("[") {
			link.Channel = c.num()
			c.lit("] ")
		}
		link.Down = downs(c)
		c.lit("->")
		me := c.num()
		c.lit("->")
		link.Up = c.num()
		if c.bad || !link.fits(me) {
			return
		}
		if x == nil {
			x = r.rankNumber(t, me)
		}
		list := &x.Trees
		if nvls {
			list = &x.NVLSTrees
		}
		r.addTree(list, link)
	}
}

// fits says whether these can be numbers of ranks and a channel.
func (l TreeLink) fits(me int) bool {
	for _, d := range l.Down {
		if d >= maxRanks {
			return false
		}
	}
	return me >= 0 && me < maxRanks && l.Up >= -1 && l.Up < maxRanks && l.Channel >= 0 && l.Channel < maxChannels
}

// downs reads "1/2/-1".
func downs(c *cursor) []int {
	var out []int
	for {
		if n := c.num(); n >= 0 && !c.bad {
			out = append(out, n)
		}
		if !c.try("/") {
			return out
		}
	}
}

func (r *Reader) addTree(list *[]TreeLink, link TreeLink) {
	for i := range *list {
		if (*list)[i].Channel == link.Channel {
			return
		}
	}
	if len(*list) >= maxKinds {
		r.drop("trees")
		return
	}
	link.At = r.place()
	*list = append(*list, link)
}

// treeLine takes "Tree 3 : up -> me -> d0/d1/d2".
func treeLine(r *Reader, t *thread, msg, rest []byte) {
	c := at(rest)
	link := TreeLink{Channel: c.num()}
	c.lit(" : ")
	link.Up = c.num()
	c.lit(" -> ")
	me := c.num()
	c.lit(" -> ")
	link.Down = downs(c)
	if !c.bad && link.Up != me && link.fits(me) {
		r.addTree(&r.rankNumber(t, me).Trees, link)
	}
}

// ringLine takes "Ring 03 : prev -> me -> next".
func ringLine(r *Reader, t *thread, msg, rest []byte) {
	c := at(rest)
	link := RingLink{Channel: c.num()}
	c.lit(" : ")
	link.Prev = c.num()
	c.lit(" -> ")
	me := c.num()
	c.lit(" -> ")
	link.Next = c.num()
	if c.bad || min(me, link.Prev, link.Next, link.Channel) < 0 || max(me, link.Prev, link.Next) >= maxRanks || link.Channel >= maxChannels {
		return
	}
	x := r.rankNumber(t, me)
	for i := range x.RingLinks {
		if x.RingLinks[i].Channel == link.Channel {
			return
		}
	}
	if len(x.RingLinks) < maxKinds {
		link.At = r.place()
		x.RingLinks = append(x.RingLinks, link)
	}
}

func nvlsHead(r *Reader, t *thread, msg, rest []byte) {
	c := at(rest)
	h := NVLSHead{Channel: c.num()}
	if !c.lit(":") {
		return
	}
	for c.blanks(); len(c.b) > 0 && !c.bad && h.Channel < maxChannels; c.blanks() {
		h.Ranks = append(h.Ranks, c.num())
	}
	x := r.rankOf(t)
	for i := range x.heads {
		if x.heads[i].Channel == h.Channel {
			return
		}
	}
	if len(x.heads) < maxKinds && !c.bad {
		h.At = r.evidence(msg)
		x.heads = append(x.heads, h)
	}
}

// nvlsLine takes "NVLS comm 0x… headRank 0 nHeads 8 buffSize …".
func nvlsLine(r *Reader, t *thread, msg, rest []byte) {
	c := at(rest)
	n := NVLS{BuffSize: -1, PerRank: -1, TotalSize: -1}
	x := t.proc.byPtr[c.hex()]
	if x == nil {
		x = r.rankOf(t)
	}
	for len(c.b) > 0 && !c.bad {
		switch w := string(c.word()); w {
		case "headRank":
			n.HeadRank = c.num()
		case "nvlsRanks":
			c.num()
			t.proc.form(27, 99)
		case "nHeads":
			n.Heads = c.num()
		case "buffSize":
			n.BuffSize = int64(c.num())
		case "nvlsPerRankSize":
			n.PerRank = int64(c.num())
		case "nvlsTotalSize":
			n.TotalSize = int64(c.num())
		}
	}
	if n.TotalSize < 0 {
		r.keepOpen(t, 'n', msg)
		return
	}
	if x.NVLS == nil {
		n.At = r.evidence(msg)
		x.NVLS = &n
	}
}

// connected takes "Connected all rings, use ring PXN 0 GDR 1" and its kin.
func connected(r *Reader, t *thread, msg, rest []byte) {
	x := (*rank)(nil)
	name := ""
	switch {
	case hasPrefix(msg, "Connected all rings"):
		name, x = "rings", r.rankOf(t)
		c := at(rest)
		if c.find("PXN ") {
			pxn := c.num()
			if c.find("GDR ") {
				gdr := c.num()
				x.RingPXN, x.RingGDR = &pxn, &gdr
			}
			t.proc.form(24, 99)
		}
	case hasPrefix(msg, "Connected all trees"):
		name = "trees"
	case hasPrefix(msg, "Connected NVLS tree"):
		name = "nvls trees"
	case contains(msg, "ollnet") || contains(msg, "CollNet"):
		name = "collnet"
	case hasPrefix(msg, "Connected binomial trees"):
		name = "binomial trees"
	default:
		r.unknownKind(msg)
		return
	}
	if x == nil {
		x = r.rankOf(t)
	}
	r.milestone(x, name, msg)
}

// pattern takes "Pattern 4, crossNic 0, nChannels 12, bw 24.0/24.0, type NVL/PIX, sameChannels 1".
func pattern(r *Reader, t *thread, msg, rest []byte) {
	c := at(rest)
	g := Graph{Pattern: c.num()}
	c.lit(", crossNic ")
	g.CrossNIC = c.num()
	c.lit(", nChannels ")
	g.Channels = c.num()
	if !c.try(", bw ") {
		c.lit(", speed ")
		t.proc.form(10, 12)
	}
	g.BWIntra = c.float()
	c.lit("/")
	g.BWInter = c.float()
	c.lit(", type ")
	intra := c.until("/")
	inter := c.until(", ")
	c.lit("sameChannels ")
	g.Same = c.num()
	if c.bad {
		return
	}
	x := r.rankOf(t)
	r.milestone(x, "topology", msg)
	for i := range x.Graphs {
		if o := x.Graphs[i]; o.Pattern == g.Pattern && o.Channels == g.Channels && o.BWIntra == g.BWIntra {
			return
		}
	}
	if len(x.Graphs) < maxKinds {
		g.TypeIntra, g.TypeInter, g.At = r.str(intra), r.str(inter), r.evidence(msg)
		x.Graphs = append(x.Graphs, g)
	}
}

// counted takes messages that begin with a number: channel totals, choices of 2.20 to 2.22, and rows of a graph.
func (r *Reader) counted(t *thread, msg []byte) bool {
	c := at(msg)
	n := c.num()
	switch {
	case c.try(" coll channels, "):
		tot := Totals{Coll: n, CollNet: -1, NVLS: -1, P2P: -1, PerPeer: -1}
		for !c.bad && len(c.b) > 0 {
			v := c.num()
			c.blanks()
			switch {
			case c.try("collnet channels"):
				tot.CollNet = v
				t.proc.form(20, 99)
			case c.try("nvls channels"):
				tot.NVLS = v
				t.proc.form(18, 99)
			case c.try("p2p channels per peer"):
				tot.PerPeer = v
			case c.try("p2p channels"):
				tot.P2P = v
			}
			if !c.try(", ") {
				break
			}
		}
		if x := r.rankOf(t); x.Totals == nil {
			tot.At = r.evidence(msg)
			x.Totals = &tot
		}
	case c.try(" Bytes -> "):
		t.proc.form(20, 22)
		r.choice(t, nil, nil, n, c, msg)
	case hasPrefix(c.b, " : GPU/") || hasPrefix(c.b, " : NET/"):
	default:
		return false
	}
	return true
}

// drawing takes messages that begin with a blank, a plus or an equals sign: the topology NCCL saw, its graphs, the table of estimates.
func (r *Reader) drawing(t *thread, msg []byte) {
	rest := bytes.TrimLeft(msg, " ")
	switch {
	case len(rest) == 0:
	case hasPrefix(rest, "=== System : maxBw "):
		c := at(rest[len("=== System : maxBw "):])
		s := System{MaxBW: c.float()}
		c.lit(" totalBw ")
		s.TotalBW = c.float()
		t.node = ""
		t.sys = nil
		if t.proc.System == nil && !c.bad {
			s.At = r.evidence(rest)
			t.proc.System = &s
			t.sys = &s
		}
	case hasPrefix(rest, "==="):
		t.sys = nil
	case hasPrefix(rest, "+ "):
		r.systemLink(t, msg, rest)
	case rest[0]-'0' < 10: // a row of a graph
	case contains(rest, "|"):
		r.tableRow(t, rest)
	case len(msg) > len(rest):
		r.info(t, rest)
	default:
		r.unknownKind(msg)
	}
}

// systemLink takes "+ PCI[24.0] - GPU/1000 (0)"; how far it is indented says what it hangs on.
func (r *Reader) systemLink(t *thread, msg, rest []byte) {
	s := t.sys
	if s == nil {
		return
	}
	indent := len(msg) - len(rest)
	c := at(rest[2:])
	l := SystemLink{Type: r.str(c.until("["))}
	l.BW = c.float()
	c.lit("] - ")
	l.To = r.str(c.word())
	if c.bad {
		return
	}
	for len(t.stack) > 0 && t.stack[len(t.stack)-1].indent >= indent {
		t.stack = t.stack[:len(t.stack)-1]
	}
	l.From = t.node
	if n := len(t.stack); n > 0 {
		l.From = t.stack[n-1].node
	}
	t.stack = append(t.stack, treeNode{indent, l.To})
	if len(s.Links) >= maxList {
		r.drop("links of a system")
		return
	}
	l.At = r.evidence(rest)
	s.Links = append(s.Links, l)
}

// treeNode is a node of the drawn topology and how far it is indented.
type treeNode struct {
	indent int
	node   string
}

// systemRoot takes "CPU/0-0 (1/2/-1)", which begins a part of the drawing.
func systemRoot(r *Reader, t *thread, msg, _ []byte) {
	if t.sys == nil {
		return
	}
	c := at(msg)
	t.node, t.stack = r.str(c.word()), t.stack[:0]
}
