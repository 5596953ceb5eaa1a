package topo

import (
	"regexp"
	"strings"
)

var busIDPattern = regexp.MustCompile(`^([0-9a-f]{1,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-9a-f])$`)

// BusID brings a PCI address into the form of /sys: lower case, four digits of domain. NVML writes eight, lspci may leave the domain out.
// What is no address comes back as it is, and false.
func BusID(s string) (string, bool) {
	id := strings.ToLower(strings.TrimSpace(s))
	if strings.Count(id, ":") == 1 {
		id = "0000:" + id
	}
	m := busIDPattern.FindStringSubmatch(id)
	if m == nil {
		return s, false
	}
	domain := strings.TrimLeft(m[1], "0")
	if len(domain) < 4 {
		domain = "0000"[len(domain):] + domain
	}
	return domain + ":" + m[2] + ":" + m[3] + "." + m[4], true
}

// rootBus is the domain and bus of an address: "0000:00".
func rootBus(id string) string {
	if i := strings.LastIndexByte(id, ':'); i > 0 {
		return id[:i]
	}
	return ""
}

// card is an address without its function: the ports of one card share it.
func card(id string) string {
	dev, _, _ := strings.Cut(id, ".")
	return dev
}
