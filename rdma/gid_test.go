package rdma

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func gids(list ...string) (out []GID) {
	for i, text := range list {
		addr, kind, _ := strings.Cut(text, " ")
		addr, subnet, _ := strings.Cut(addr, "@")
		out = append(out, GID{Index: i, Addr: addr, Type: map[string]string{"v1": typeRoCE1, "v2": typeRoCE2, "?": ""}[kind], Subnet: subnet})
	}
	return out
}

func TestPairGIDs(t *testing.T) {
	t.Parallel()
	usual := []string{"fe80::1 v1", "fe80::1 v2", "10.0.0.1 v1", "10.0.0.1 v2"}
	peer := []string{"fe80::2 v1", "fe80::2 v2", "10.0.0.2 v1", "10.0.0.2 v2"}
	for _, c := range []struct {
		name           string
		client, server []GID
		cx, sx         int
		first          [2]int // indexes of the first pair
		pairs          int
		why            string
		rejected       []string
	}{
		{"usual table", gids(usual...), gids(peer...), -1, -1, [2]int{3, 3}, 4, "RoCE v2, IPv4, same subnet 10.0.0.0/24", nil},
		{"indexes differ", gids("fe80::1 v2", "10.0.0.1 v2"), gids(peer...), -1, -1, [2]int{1, 3}, 2, "same subnet", []string{"IB/RoCE v1"}},
		{"a second network on the server", gids("10.0.0.1 v2"), gids("10.9.0.2 v2", "10.0.0.2 v2"), -1, -1, [2]int{0, 1}, 2, "same subnet 10.0.0.0/24", nil},
		{"routed", gids("10.0.0.1 v2"), gids("10.9.0.2 v2"), -1, -1, [2]int{0, 0}, 1, "different subnets, needs routing", nil},
		{"wide prefix", gids("10.0.0.1@10.0.0.0/8 v2"), gids("10.9.0.2@10.0.0.0/8 v2"), -1, -1, [2]int{0, 0}, 1, "same subnet 10.0.0.0/8", nil},
		{"the narrower prefix counts", gids("10.0.0.1@10.0.0.0/8 v2"), gids("10.9.0.2@10.9.0.0/16 v2"), -1, -1, [2]int{0, 0}, 1, "different subnets", nil},
		{"prefix of the server alone", gids("10.0.0.1 v2"), gids("10.0.9.2@10.0.0.0/16 v2"), -1, -1, [2]int{0, 0}, 1, "same subnet 10.0.0.0/16", nil},
		{"v1 only", gids("10.0.0.1 v1"), gids(peer...), -1, -1, [2]int{0, 2}, 1, "IB/RoCE v1, IPv4", []string{"RoCE v2"}},
		{"IPv6 only", gids("fe80::1 v2", "fd00::1 v2"), gids("fe80::2 v2", "fd00::2 v2", "10.0.0.2 v2"), -1, -1, [2]int{1, 1}, 2, "RoCE v2, IPv6, same subnet fd00::/64", []string{"address family"}},
		{"link-local is a last resort", gids("fe80::1 v2"), gids("fe80::2 v2", "10.0.0.2 v2"), -1, -1, [2]int{0, 0}, 1, "link-local, works on one network segment only", nil},
		{"v1 with an address before link-local v2", gids("fe80::1 v2", "10.0.0.1 v1"), gids("fe80::2 v2", "10.0.0.2 v1"), -1, -1, [2]int{1, 1}, 2, "IB/RoCE v1", nil},
		{"IPv4 link-local", gids("169.254.0.1 v2", "fd00::1 v2"), gids("169.254.0.2 v2", "fd00::2 v2"), -1, -1, [2]int{1, 1}, 2, "IPv6", nil},
		{"unknown types", gids("10.0.0.1 ?"), gids("10.0.0.2 v1", "10.0.0.2 v2"), -1, -1, [2]int{0, 1}, 2, "RoCE v2", nil},
		{"both unknown", gids("10.0.0.1 ?"), gids("10.0.0.2 ?"), -1, -1, [2]int{0, 0}, 1, "type unknown, IPv4", nil},
		{"client's index", gids(usual...), gids(peer...), 2, -1, [2]int{2, 2}, 1, "IB/RoCE v1", nil},
		{"both indexes", gids(usual...), gids(peer...), 1, 1, [2]int{1, 1}, 1, "link-local", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			pairs, rejected, err := pairGIDs(c.client, c.server, c.cx, c.sx)
			if err != nil {
				t.Fatal(err)
			}
			if p := pairs[0]; p.Client.Index != c.first[0] || p.Server.Index != c.first[1] || !strings.Contains(p.Why, c.why) || !p.Global {
				t.Errorf("first pair %v: %s; want %v %q", p, p.Why, c.first, c.why)
			}
			if len(pairs) != c.pairs {
				t.Errorf("%d pairs, want %d: %v", len(pairs), c.pairs, pairs)
			}
			var why []string
			for _, r := range rejected {
				why = append(why, r.Why)
			}
			for _, w := range c.rejected {
				if !strings.Contains(strings.Join(why, "\n"), w) {
					t.Errorf("rejected for %q, want %q", why, w)
				}
			}
		})
	}
}

func TestNoGIDPair(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name           string
		client, server []GID
		cx, sx         int
		kind           Kind
		says           []string
	}{
		{"empty table", nil, gids("10.0.0.2 v2"), -1, -1, Unusable, []string{"the GID table of the client is empty", "IP address"}},
		{"other types", gids("10.0.0.1 v1"), gids("10.0.0.2 v2"), -1, -1, Unusable, []string{"types: IB/RoCE v1", "types: RoCE v2", "same type and address family"}},
		{"other families", gids("10.0.0.1 v2"), gids("fd00::2 v2"), -1, -1, Unusable, []string{"0: 10.0.0.1 (RoCE v2)", "0: fd00::2 (RoCE v2)"}},
		{"an index that is empty", gids("10.0.0.1 v2"), gids("10.0.0.2 v2"), 5, -1, Usage, []string{"GID index 5 of the client is empty", "0: 10.0.0.1", "leave -x out"}},
		{"indexes that do not fit", gids("10.0.0.1 v2", "fe80::1 v2"), gids("10.0.0.2 v2"), 1, -1, Unusable, []string{"leave -x out"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := pairGIDs(c.client, c.server, c.cx, c.sx)
			says(t, err, c.kind, c.says...)
		})
	}
}

// Whatever the tables, both sides come to pairs of equal type and family in an order that only the pairs decide, and nothing is in two lists.
func TestPairGIDsRandom(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	pool := []string{"fe80::1", "fd00::1", "fd00::2", "10.0.0.1", "10.0.0.2", "10.1.0.1", "169.254.1.1"}
	table := func() []GID {
		var list []string
		for range 1 + r.IntN(8) {
			list = append(list, pool[r.IntN(len(pool))]+" "+[]string{"v1", "v2", "?"}[r.IntN(3)])
		}
		return gids(list...)
	}
	for range 2000 {
		c, s := table(), table()
		pairs, rejected, err := pairGIDs(c, s, -1, -1)
		if (err == nil) != (len(pairs) > 0) {
			t.Fatalf("seed %d: %v and %d pairs", seed, err, len(pairs))
		}
		in := map[[2]any]bool{}
		for i, p := range pairs {
			if i > 0 && p.score > pairs[i-1].score {
				t.Fatalf("seed %d: pair %d is better than the one before", seed, i)
			}
			if p.Client.Type != p.Server.Type && p.Client.Type != "" && p.Server.Type != "" || strings.Contains(p.Client.Addr, ".") != strings.Contains(p.Server.Addr, ".") {
				t.Fatalf("seed %d: %v", seed, p)
			}
			in[[2]any{"client", p.Client.Index}], in[[2]any{"server", p.Server.Index}] = true, true
		}
		for _, x := range rejected {
			if in[[2]any{x.Side, x.GID.Index}] {
				t.Fatalf("seed %d: %+v is in a pair", seed, x)
			}
		}
		if len(in)+len(rejected) != len(c)+len(s) {
			t.Fatalf("seed %d: %d in pairs, %d rejected, of %d", seed, len(in), len(rejected), len(c)+len(s))
		}
	}
}
