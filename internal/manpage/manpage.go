//go:build manpage

// Package manpage writes manual pages of a command's own help. It is linked into
// no program that is installed: `make man` builds each with the tag manpage, and
// the program then writes its pages instead of doing its work.
package manpage

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// Commands writes a page for the command that build makes and for each below it, and
// ends the program, if that was started to do so.
func Commands(section string, build func() *cobra.Command) {
	instead(func(dir string) error {
		c, when := build(), date()
		c.DisableAutoGenTag = true
		escape(c)
		return doc.GenManTree(c, &doc.GenManHeader{Section: section, Date: &when, Source: "yoi-runtime", Manual: "yoi-runtime"}, dir)
	})
}

// Text is Commands for a program whose page is its usage as it prints it.
func Text(name, section, short, usage string) {
	instead(func(dir string) error {
		md := "% \"" + name + "\" \"" + section + "\" \"" + date().Format("Jan 2006") + "\" \"yoi-runtime\" \"yoi-runtime\"\n\n" +
			"# NAME\n" + name + " - " + short + "\n\n# DESCRIPTION\n```\n" + usage + "```\n"
		return os.WriteFile(filepath.Join(dir, name+"."+section), md2man.Render([]byte(md)), 0o644)
	})
}

// instead does f in place of the program's work if that is "manpages DIR".
func instead(f func(dir string) error) {
	if len(os.Args) != 3 || os.Args[1] != "manpages" {
		return
	}
	if err := f(os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
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

// date is SOURCE_DATE_EPOCH's, so that the same sources make the same pages.
func date() time.Time {
	n, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return time.Now().UTC()
	}
	return time.Unix(n, 0).UTC()
}
