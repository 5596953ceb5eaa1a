package evidence

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// ncclBus is the GPU's address as NCCL's Init lines have it: the digits of "0000:c3:00.0" without what stands between them, as one hexadecimal number,
// which has no zeros in front ("c3000"). Lines of some versions have it in the kernel's form. "" if it is neither.
func ncclBus(word string) string {
	if strings.Contains(word, ":") {
		return kernelBus([]byte(word))
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(word, "0x"), 16, 64)
	if err != nil || word == "" {
		return ""
	}
	return fmt.Sprintf("%04x:%02x:%02x.%x", n>>20, n>>12&0xff, n>>4&0xff, n&0xf)
}

// kernelBus reads "PCI:0000:c3:00", "0000:C3:00.0", "00000000:c3:00.0" (as nvidia-smi has it) or "c3:00.0" at the beginning of b. "" if it is something else.
func kernelBus(b []byte) string {
	b = bytes.TrimPrefix(bytes.TrimSpace(b), []byte("PCI:"))
	end := 0
	for end < len(b) && end < 20 && (hexDigit[b[end]] < 16 || b[end] == ':' || b[end] == '.') {
		end++
	}
	text, function, _ := strings.Cut(strings.TrimRight(string(b[:end]), ":."), ".")
	parts := strings.Split(text, ":")
	if len(parts) == 2 {
		parts = append([]string{"0"}, parts...)
	}
	if len(parts) != 3 || len(parts[1]) != 2 || len(parts[2]) != 2 || len(function) > 1 {
		return ""
	}
	var n [4]uint64
	for i, p := range append(parts, function) {
		if i == 3 && p == "" {
			break
		}
		v, err := strconv.ParseUint(p, 16, 32)
		if err != nil {
			return ""
		}
		n[i] = v
	}
	return fmt.Sprintf("%04x:%02x:%02x.%x", n[0], n[1], n[2], n[3])
}

// busIn finds the first address of a device in b, "" if there is none.
func busIn(b []byte) string {
	for from := 0; ; {
		i := bytes.IndexByte(b[from:], ':')
		if i < 0 {
			return ""
		}
		i += from
		start := i
		for start > 0 && hexDigit[b[start-1]] < 16 {
			start--
		}
		if n := i - start; n == 4 || n == 8 || n == 2 {
			if bus := kernelBus(b[start:]); bus != "" && bytes.IndexByte(b[start:min(len(b), start+18)], '.') > 0 {
				return bus
			}
		}
		from = i + 1
	}
}

// joinGPUs gives the kernel's facts about a GPU the rank whose communicators are on it. Hosts of one kind have the same addresses, so one that several
// hosts have says nothing without the host; a fact that names its process is not looked at, which knows better.
func joinGPUs(e *Evidence) {
	type gpu struct{ host, bus string }
	ranks := map[gpu]int{}
	hosts := map[string]bool{}
	learn := func(g gpu, rank int) {
		if old, ok := ranks[g]; ok && old != rank {
			rank = -1
		}
		ranks[g] = rank
	}
	for _, x := range e.Comms {
		if x.BusID == "" || x.Global < 0 {
			continue
		}
		host := shortHost(x.Host)
		hosts[host] = true
		learn(gpu{host, x.BusID}, x.Global)
		learn(gpu{"", x.BusID}, x.Global)
	}
	if len(hosts) == 0 {
		return
	}
	for i := range e.Facts {
		f := &e.Facts[i]
		if f.BusID == "" || f.Rank >= 0 {
			continue
		}
		host := shortHost(f.Host)
		if host == "" {
			host = hostInName(f.Where.File, hosts)
		}
		if host != "" && !hosts[host] && len(hosts) > 1 { // a host of which nothing is known
			continue
		}
		if !hosts[host] { // one host that has two names, or none is said
			host = ""
		}
		if rank, ok := ranks[gpu{host, f.BusID}]; ok {
			f.Rank = rank
		}
	}
}

// shortHost is a host's name as NCCL has it: cut at the first dot, unless it is an address.
func shortHost(host string) string {
	if strings.Trim(host, "0123456789.") == "" {
		return host
	}
	short, _, _ := strings.Cut(host, ".")
	return short
}

// hostInName finds the one host whose name is in that of a file or of its folders: "logs/node-b/dmesg", "dmesg.node-b.txt". "" if there is none, or several.
func hostInName(name string, hosts map[string]bool) string {
	found := ""
	for h := range hosts {
		for from := 0; h != ""; {
			i := strings.Index(name[from:], h)
			if i < 0 {
				break
			}
			i += from
			end := i + len(h)
			if (i == 0 || !partOfName(name[i-1])) && (end == len(name) || !partOfName(name[end])) {
				if found != "" && found != h {
					return ""
				}
				found = h
			}
			from = end
		}
	}
	return found
}

func partOfName(c byte) bool { return c-'0' < 10 || (c|0x20)-'a' < 26 }
