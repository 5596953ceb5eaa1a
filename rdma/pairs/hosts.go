package pairs

import (
	"fmt"
	"net"
	"os"
	"strings"
	"unicode"
)

// Limits of what one run takes on.
const (
	maxHosts = 256
	maxPairs = 500_000
)

// ParseHosts reads "hosta,user@hostb,hostc=10.0.0.3": names as the remote shell takes them, each with the address by which the others reach it where that is
// another one.
func ParseHosts(text string) ([]Host, error) {
	var out []Host
	seen := map[string]bool{}
	for part := range strings.SplitSeq(text, ",") {
		name, addr, given := strings.Cut(strings.TrimSpace(part), "=")
		if err := checkName(name); err != nil {
			return nil, err
		}
		if !given {
			_, addr, _ = strings.Cut("@"+name, "@")
			if i := strings.LastIndex(name, "@"); i >= 0 {
				addr = name[i+1:]
			}
		}
		if err := checkName(addr); err != nil {
			return nil, fmt.Errorf("address of %s: %w", name, err)
		}
		if seen[name] {
			return nil, fmt.Errorf("%s is named twice", name)
		}
		seen[name] = true
		out = append(out, Host{name, strings.Trim(addr, "[]")})
	}
	if len(out) < 2 {
		return nil, fmt.Errorf("a pair takes two hosts: name at least two, with commas")
	}
	if len(out) > maxHosts {
		return nil, fmt.Errorf("%d hosts: at most %d", len(out), maxHosts)
	}
	return notLocalhost(out), nil
}

// checkName refuses what a remote shell would take for an option, or for more than one word.
func checkName(name string) error {
	bad := strings.ContainsFunc(name, func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r) || strings.ContainsRune("'\"\\$`;&|<>(){}*?!#", r)
	})
	switch {
	case name == "":
		return fmt.Errorf("a name of a host is empty")
	case strings.HasPrefix(name, "-") || bad:
		return fmt.Errorf("%q is no name of a host", name)
	}
	return nil
}

// notLocalhost gives this host the name by which others know it, where it was called localhost and others take part.
func notLocalhost(hosts []Host) []Host {
	loopback := func(addr string) bool {
		ip := net.ParseIP(addr)
		return addr == "localhost" || ip != nil && ip.IsLoopback()
	}
	others := false
	for _, h := range hosts {
		others = others || !loopback(h.Addr)
	}
	own, err := os.Hostname()
	for i, h := range hosts {
		if others && h.Addr == "localhost" && err == nil {
			hosts[i].Addr = own
		}
	}
	return hosts
}
