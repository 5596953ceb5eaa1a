// Package pages holds the texts of the hang laboratory: one page a scenario, plain text that also reads as Markdown.
package pages

import (
	"embed"
	"fmt"
	"strings"
)

//go:embed *.md
var files embed.FS

// Page is the text of one scenario. An unknown name is an error that lists the known ones.
func Page(name string) (string, error) {
	text, err := files.ReadFile(name + ".md")
	if err != nil {
		return "", fmt.Errorf("no page for scenario %q; there are %s", name, strings.Join(Names(), ", "))
	}
	return string(text), nil
}

// Names are the scenarios that have a page, in alphabetical order.
func Names() []string {
	entries, _ := files.ReadDir(".") // the embedded root is always readable
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".md"))
	}
	return names
}
