package rdma

// CanMeet says why two ports, as Devices lists them, cannot be tested against each other with these options, by the rules of the test itself and without
// touching either: another link layer, no GID pair, more QPs than a device has. nil: only a test can tell.
func CanMeet(client, server *Side, o Options) error {
	o.Tests = []string{"write"} // what a listed port answers of READs is not asked here
	_, err := agree(client, server, &o)
	return err
}
