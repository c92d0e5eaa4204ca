//go:build manpage

// Package manpage writes manual pages of a command's own help. It is linked into
// no program that is installed: `make man` builds each with the tag manpage, and
// the program then writes its pages instead of doing its work.
package manpage

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// Wanted is the directory that pages are wanted in.
func Wanted() (dir string, ok bool) {
	if len(os.Args) == 3 && os.Args[1] == "manpages" {
		return os.Args[2], true
	}
	return "", false
}

// Commands writes a page for c and each command below it.
func Commands(c *cobra.Command, section, dir string) error {
	when := date()
	c.DisableAutoGenTag = true
	escape(c)
	return doc.GenManTree(c, &doc.GenManHeader{Section: section, Date: &when, Source: "yoi-runtime", Manual: "yoi-runtime"}, dir)
}

// escape has "<id>" printed as it is, not taken for a tag of HTML.
func escape(c *cobra.Command) {
	for _, s := range []*string{&c.Short, &c.Long} {
		*s = strings.ReplaceAll(*s, "<", `\<`)
	}
	for _, sub := range c.Commands() {
		escape(sub)
	}
}

// Text writes a page whose description is a program's usage as it prints it.
func Text(name, section, short, usage, dir string) error {
	md := "% \"" + name + "\" \"" + section + "\" \"" + date().Format("Jan 2006") + "\" \"yoi-runtime\" \"yoi-runtime\"\n\n" +
		"# NAME\n" + name + " - " + short + "\n\n# DESCRIPTION\n```\n" + usage + "```\n"
	return os.WriteFile(filepath.Join(dir, name+"."+section), md2man.Render([]byte(md)), 0o644)
}

// date is SOURCE_DATE_EPOCH's, so that the same sources make the same pages.
func date() time.Time {
	n, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return time.Now().UTC()
	}
	return time.Unix(n, 0).UTC()
}
