package evidence

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"github.com/commprobe/commprobe/hanglab/flight"
)

// NameSource says how a group's name was found.
type NameSource int

// How a group's name was found, the surest last.
const (
	NameUnknown   NameSource = iota
	NameByOrder              // the k-th counter belongs to the k-th group: held in every dump looked at, but nothing in the format promises it
	NameByEntries            // an entry has both the id and the name
)

type groupName struct {
	name string
	by   NameSource
}

// GroupName gives the name of the group that a process knows as pgID. No table in a dump says so. Entries do, for the groups that have any; a
// rank that is stuck before its first call has only counters, which are then matched to the groups by order. That is tried only where it can be right:
// as many counters as groups, all names numbers, and no entry against it.
func (d *FlightDump) GroupName(pgID int64) (string, NameSource) {
	n := d.names[pgID]
	return n.name, n.by
}

// nameGroups fills what GroupName answers from.
func (d *FlightDump) nameGroups() {
	d.names = map[int64]groupName{}
	var last *FlightOrigin
	for i := range d.Entries {
		o := d.Entries[i].Origin
		if o == last || o.GroupName == "" && o.GroupDesc == "" {
			continue // format 1.x has no names in its entries
		}
		last = o
		d.nameByEntry(o)
	}
	for id, name := range d.namesByOrder() {
		if _, ok := d.names[id]; !ok {
			d.names[id] = groupName{name, NameByOrder}
		}
	}
}

func (d *FlightDump) nameByEntry(o *FlightOrigin) {
	have, ok := d.names[o.PGID]
	if !ok {
		d.names[o.PGID] = groupName{o.GroupName, NameByEntries}
		return
	}
	if have.name != o.GroupName {
		d.warn("two-names", "pg_id "+strconv.FormatInt(o.PGID, 10)+" is group "+strconv.Quote(have.name)+" in one entry and "+
			strconv.Quote(o.GroupName)+" in another; the first is used")
	}
}

func (d *FlightDump) namesByOrder() map[int64]string {
	if len(d.Status) != len(d.Groups) {
		return nil
	}
	numbers := map[uint64]string{}
	for _, g := range d.Groups {
		n, err := strconv.ParseUint(g.Name, 10, 64)
		if err != nil {
			return nil
		}
		numbers[n] = g.Name
	}
	if len(numbers) != len(d.Groups) {
		return nil
	}
	order := slices.Sorted(maps.Keys(numbers))
	status := slices.Clone(d.Status)
	slices.SortFunc(status, func(a, b flight.GroupStatus) int { return cmp.Compare(a.PGID, b.PGID) })
	out := map[int64]string{}
	for i, s := range status {
		name := numbers[order[i]]
		if seen, ok := d.names[s.PGID]; ok && seen.name != name {
			return nil
		}
		out[s.PGID] = name
	}
	return out
}

func (d *FlightDump) warn(code, text string) {
	for _, w := range d.Warnings {
		if w.Code == code && w.Text == text {
			return
		}
	}
	if len(d.Warnings) < maxFlightWarnings {
		d.Warnings = append(d.Warnings, FlightWarning{code, text})
	}
}
