package nccl

import "github.com/commprobe/commprobe/csrc"

// Config holds the settings of a communicator. Make it with NewConfig; every setter refuses what the loaded library is too old for.
type Config struct{ c csrc.NCCLConfig }

// Places in csrc.NCCLConfig.Ints.
const (
	cfgVersion = iota
	cfgBlocking
	cfgCGA
	cfgMinCTAs
	cfgMaxCTAs
	cfgSplitShare
	cfgTrafficClass
	cfgCollnet
	cfgCTAPolicy
	cfgShrinkShare
	cfgNVLSCTAs
	cfgChannelsPerNetPeer
	cfgNVLinkCentric
)

// NewConfig returns a config whose every field keeps the library's default.
func NewConfig() *Config {
	c := &Config{}
	for i := range c.c.Ints {
		c.c.Ints[i] = csrc.NCCLConfigUndef
	}
	c.c.Ints[cfgVersion] = int32(min(loaded.version, newestConfig))
	return c
}

func (c *Config) set(what string, field int, value int, since Version) error {
	if loaded.version < since {
		return &VersionError{what, since, loaded.version}
	}
	c.c.Ints[field] = int32(value)
	return nil
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// SetBlocking false makes calls return at once with ErrInProgress while they go on (2.14).
func (c *Config) SetBlocking(b bool) error { return c.set("blocking", cfgBlocking, boolInt(b), 21400) }

// SetCGAClusterSize sets the thread block cluster size, 0 to 8 (2.17).
func (c *Config) SetCGAClusterSize(n int) error { return c.set("cgaClusterSize", cfgCGA, n, 21700) }

// SetMinCTAs sets the least number of thread blocks (2.17).
func (c *Config) SetMinCTAs(n int) error { return c.set("minCTAs", cfgMinCTAs, n, 21700) }

// SetMaxCTAs sets the greatest number of thread blocks (2.17).
func (c *Config) SetMaxCTAs(n int) error { return c.set("maxCTAs", cfgMaxCTAs, n, 21700) }

// SetSplitShare lets communicators that are split off share resources with their parent (2.18).
func (c *Config) SetSplitShare(b bool) error {
	return c.set("splitShare", cfgSplitShare, boolInt(b), 21800)
}

// SetTrafficClass sets the network traffic class (2.26).
func (c *Config) SetTrafficClass(n int) error {
	return c.set("trafficClass", cfgTrafficClass, n, 22600)
}

// SetCTAPolicy sets how thread blocks are used: 0 default, 1 efficiency, 2 zero (2.27).
func (c *Config) SetCTAPolicy(n int) error { return c.set("CTAPolicy", cfgCTAPolicy, n, Since227) }

// SetNVLSCTAs sets the number of thread blocks for NVLS (2.27).
func (c *Config) SetNVLSCTAs(n int) error { return c.set("nvlsCTAs", cfgNVLSCTAs, n, Since227) }

// SetNVLinkCentricSched prefers NVLink in scheduling; nccl-tests sets it (2.28).
func (c *Config) SetNVLinkCentricSched(b bool) error {
	return c.set("nvlinkCentricSched", cfgNVLinkCentric, boolInt(b), Since228)
}

// SetNetName selects the network module by name (2.17).
func (c *Config) SetNetName(name string) error {
	if loaded.version < 21700 {
		return &VersionError{"netName", 21700, loaded.version}
	}
	c.c.NetName = name
	return nil
}

// SetCommName names the communicator in NCCL's own messages (2.27).
func (c *Config) SetCommName(name string) error {
	if loaded.version < Since227 {
		return &VersionError{"commName", Since227, loaded.version}
	}
	c.c.CommName = name
	return nil
}

func (c *Config) raw() *csrc.NCCLConfig {
	if c == nil {
		return nil
	}
	return &c.c
}
