package flight

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// Opcodes of pickle protocol 2, the ones that PyTorch's C++ pickler uses.
const (
	opProto      = 0x80
	opStop       = '.'
	opMark       = '('
	opEmptyDict  = '}'
	opSetItems   = 'u'
	opEmptyList  = ']'
	opAppends    = 'e'
	opBinUnicode = 'X'
	opBinPut     = 'q'
	opLongBinPut = 'r'
	opBinGet     = 'h'
	opLongBinGet = 'j'
	opBinInt1    = 'K'
	opBinInt2    = 'M'
	opBinInt     = 'J'
	opLong1      = 0x8a
	opBinFloat   = 'G'
	opTuple2     = 0x86
	opNone       = 'N'
	opNewTrue    = 0x88
	opNewFalse   = 0x89
)

// WritePickle writes the dump as PyTorch's watchdog does: protocol 2, keys in its order, strings and stack frames written once and referred to
// afterwards. Text that is no UTF-8 is mended, since Python would refuse the whole file. The errors are those of w, and two groups or
// two statuses under one key.
func (d *Dump) WritePickle(w io.Writer) error {
	if err := d.check(); err != nil {
		return err
	}
	p := &pickler{w: bufio.NewWriterSize(w, 32<<10), strings: map[string]uint32{}, frames: map[Frame]uint32{}, uses: d.frameUses()}
	p.op(opProto)
	p.op(2)
	p.dict(func() {
		p.text("version")
		p.text(d.version())
		p.text("pg_config")
		p.dict(func() {
			for _, g := range d.Groups {
				p.group(g)
			}
		})
		p.text("comm_lib_version")
		p.text(d.CommLibVersion)
		p.text("pg_status")
		p.dict(func() {
			for _, s := range d.Status {
				p.status(s)
			}
		})
		p.text("entries")
		p.list(func() {
			for i := range d.Entries {
				p.entry(&d.Entries[i])
			}
		})
	})
	p.put()
	p.op(opStop)
	return p.w.Flush() // bufio keeps the first error
}

func (d *Dump) frameUses() map[Frame]int {
	uses := map[Frame]int{}
	for i := range d.Entries {
		for _, f := range d.Entries[i].Frames {
			uses[f]++
		}
	}
	return uses
}

func (d *Dump) version() string {
	if d.Version == "" {
		return Version
	}
	return d.Version
}

// check refuses what the format cannot hold: it keys groups by name and counters by id, so a second one would silently replace the first.
func (d *Dump) check() error {
	names := map[string]bool{}
	for _, g := range d.Groups {
		if names[g.Name] {
			return fmt.Errorf("write flight recorder dump: two groups are called %q; give each a name of its own", g.Name)
		}
		names[g.Name] = true
	}
	ids := map[int64]bool{}
	for _, s := range d.Status {
		if ids[s.PGID] {
			return fmt.Errorf("write flight recorder dump: two statuses for pg_id %d; give each group an id of its own", s.PGID)
		}
		ids[s.PGID] = true
	}
	return nil
}

// ranksText is the list as the format spells it: a string, not a list.
func ranksText(ranks []int) string {
	b := []byte{'['}
	for i, r := range ranks {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = strconv.AppendInt(b, int64(r), 10)
	}
	return string(append(b, ']'))
}

type pickler struct {
	w       *bufio.Writer
	strings map[string]uint32 // where each is in the memo
	frames  map[Frame]uint32
	uses    map[Frame]int
	memo    uint32 // next free place
}

func (p *pickler) group(g Group) {
	p.text(g.Name)
	p.dict(func() {
		p.text("name")
		p.text(g.Name)
		p.text("desc")
		p.text(g.Desc)
		p.text("ranks")
		p.text(ranksText(g.Ranks))
	})
}

func (p *pickler) status(s GroupStatus) {
	p.text(strconv.FormatInt(s.PGID, 10))
	p.dict(func() {
		p.int("last_enqueued_collective", s.LastEnqueued)
		p.int("last_started_collective", s.LastStarted)
		p.int("last_completed_collective", s.LastCompleted)
	})
}

func (p *pickler) entry(e *Entry) {
	p.dict(func() {
		if e.Frames != nil {
			p.text("frames")
			p.list(func() {
				for _, f := range e.Frames {
					p.frame(f)
				}
			})
		}
		p.int("record_id", e.RecordID)
		p.int("pg_id", e.PGID)
		p.text("process_group")
		p.text(e.GroupName)
		p.text(e.GroupDesc)
		p.op(opTuple2)
		p.pair("thread_name", e.ThreadName)
		p.pair("thread_id", e.ThreadID)
		p.int("collective_seq_id", e.CollectiveSeqID)
		p.int("p2p_seq_id", e.P2PSeqID)
		p.int("op_id", e.OpID)
		p.pair("profiling_name", e.ProfilingName)
		p.int("time_created_ns", e.TimeCreatedNs)
		if e.DurationMs != nil {
			p.text("duration_ms")
			p.float(*e.DurationMs)
		}
		p.sizes("input_sizes", e.InputSizes)
		p.texts("input_dtypes", e.InputDtypes)
		p.sizes("output_sizes", e.OutputSizes)
		p.texts("output_dtypes", e.OutputDtypes)
		p.pair("state", string(e.State))
		p.time("time_discovered_started_ns", e.TimeDiscoveredStartedNs)
		p.time("time_discovered_completed_ns", e.TimeDiscoveredCompletedNs)
		p.bool("retired", e.Retired)
		p.int("timeout_ms", e.TimeoutMs)
		p.bool("is_p2p", e.IsP2P)
	})
}

// frame writes one dictionary for each place in the code, however many stacks go through it.
func (p *pickler) frame(f Frame) {
	if at, ok := p.frames[f]; ok {
		p.get(at)
		return
	}
	p.dict(func() {
		p.pair("name", f.Name)
		p.pair("filename", f.File)
		p.int("line", int64(f.Line))
	})
	if p.uses[f] > 1 { // PyTorch puts nothing in the memo that is not taken out again
		p.frames[f] = p.put()
	}
}

func (p *pickler) sizes(key string, shapes [][]int64) {
	p.text(key)
	p.list(func() {
		for _, shape := range shapes {
			p.list(func() {
				for _, n := range shape {
					p.integer(n)
				}
			})
		}
	})
}

func (p *pickler) texts(key string, values []string) {
	p.text(key)
	p.list(func() {
		for _, v := range values {
			p.text(v)
		}
	})
}

func (p *pickler) pair(key, value string) {
	p.text(key)
	p.text(value)
}

func (p *pickler) int(key string, value int64) {
	p.text(key)
	p.integer(value)
}

func (p *pickler) time(key string, ns *int64) {
	p.text(key)
	if ns == nil {
		p.op(opNone)
		return
	}
	p.integer(*ns)
}

func (p *pickler) bool(key string, value bool) {
	p.text(key)
	if value {
		p.op(opNewTrue)
		return
	}
	p.op(opNewFalse)
}

func (p *pickler) dict(items func()) { p.container(opEmptyDict, opSetItems, items) }
func (p *pickler) list(items func()) { p.container(opEmptyList, opAppends, items) }

func (p *pickler) container(empty, fill byte, items func()) {
	p.op(empty)
	p.op(opMark)
	items()
	p.op(fill)
}

// text writes a string the first time and a reference to it afterwards.
func (p *pickler) text(s string) {
	if at, ok := p.strings[s]; ok {
		p.get(at)
		return
	}
	clean := strings.ToValidUTF8(s, "\uFFFD")
	p.op(opBinUnicode)
	p.bytes(binary.LittleEndian.AppendUint32(nil, uint32(len(clean))))
	_, _ = p.w.WriteString(clean)
	p.strings[s] = p.put()
}

func (p *pickler) put() uint32 {
	at := p.memo
	p.memo++
	p.memoOp(opBinPut, opLongBinPut, at)
	return at
}

func (p *pickler) get(at uint32) { p.memoOp(opBinGet, opLongBinGet, at) }

func (p *pickler) memoOp(short, long byte, at uint32) {
	if at <= math.MaxUint8 {
		p.op(short)
		p.op(byte(at))
		return
	}
	p.op(long)
	p.bytes(binary.LittleEndian.AppendUint32(nil, at))
}

func (p *pickler) integer(n int64) {
	switch {
	case n >= 0 && n <= math.MaxUint8:
		p.op(opBinInt1)
		p.op(byte(n))
	case n >= 0 && n <= math.MaxUint16:
		p.op(opBinInt2)
		p.bytes(binary.LittleEndian.AppendUint16(nil, uint16(n)))
	case n >= math.MinInt32 && n <= math.MaxInt32:
		p.op(opBinInt)
		p.bytes(binary.LittleEndian.AppendUint32(nil, uint32(n)))
	default:
		p.op(opLong1)
		p.op(8)
		p.bytes(binary.LittleEndian.AppendUint64(nil, uint64(n)))
	}
}

// float is big-endian, unlike all else in a pickle.
func (p *pickler) float(f float64) {
	p.op(opBinFloat)
	p.bytes(binary.BigEndian.AppendUint64(nil, math.Float64bits(f)))
}

func (p *pickler) op(b byte)      { _ = p.w.WriteByte(b) }
func (p *pickler) bytes(b []byte) { _, _ = p.w.Write(b) }
