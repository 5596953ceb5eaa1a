package diagnose

import "slices"

// consequences takes out what follows from a disagreement of the same group, whatever source shows it: calls that differ may complete where their bytes happen to pair
// up, so that it is a later call that hangs. What is taken out stays as evidence.
func (j *job) consequences() {
	for _, root := range slices.Clone(j.found) {
		if root.root == nil || root.layer != unfinished || root.Confidence < probable || !slices.Contains(j.found, root) {
			continue
		}
		j.found = slices.DeleteFunc(j.found, func(f *finding) bool {
			if f == root || !root.causes(f) {
				return false
			}
			for _, it := range f.Evidence[:min(2, len(f.Evidence))] {
				root.item(it.Where, it.Text, it.Says)
			}
			return true
		})
	}
}

// causes tells that another finding is about a later call of the same group, or about the same call and knows less.
func (f *finding) causes(o *finding) bool {
	if o.layer != unfinished || o.of == nil || o.of.key() != f.of.key() || o.P2P != f.P2P {
		return false
	}
	if o.Sequence == f.Sequence {
		return o.root != nil && f.root.why != none && o.root.tie
	}
	if o.Sequence < f.Sequence {
		return false
	}
	host := o.Class == RankStuckHost && o.Confidence >= inferred
	return !host || f.root.shift != 0 // a program that does not come has a reason of its own, unless it is that it has made a call less
}

// key is what a group is called in every source.
func (g *group) key() string {
	if g.name == "default_pg" || g.desc == "default_pg" {
		return "0"
	}
	return g.name
}
