package ncclenv

import (
	"embed"
	"fmt"
)

//go:embed profiles/*.sh
var profiles embed.FS

// Profiles are the names that Profile knows.
var Profiles = []string{"debug", "prod"}

// Profile returns a commented template for a shell: "debug" to find out what is wrong, "prod" for production.
func Profile(name string) (string, error) {
	text, err := profiles.ReadFile("profiles/" + name + ".sh")
	if err != nil {
		return "", fmt.Errorf("no profile %q: there are debug and prod", name)
	}
	return string(text), nil
}
