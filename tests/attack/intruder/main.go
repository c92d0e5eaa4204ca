// Command intruder tries one attack and says how it went: the tests of package
// attack run it inside and outside of a sandbox. Exit status 0 means that the
// attack succeeded, 1 that it was refused, 2 that it could not be tried.
package main

import (
	"fmt"
	"os"
	"sort"
)

// attack returns what it got hold of, or why not.
type attack func(args []string) (string, error)

var attacks = map[string]attack{}

func main() {
	if len(os.Args) < 2 || attacks[os.Args[1]] == nil {
		names := make([]string, 0, len(attacks))
		for n := range attacks {
			names = append(names, n)
		}
		sort.Strings(names)
		fmt.Println("no such attack; there are", names)
		os.Exit(2)
	}
	got, err := attacks[os.Args[1]](os.Args[2:])
	if err != nil {
		fmt.Println("refused:", err)
		os.Exit(1)
	}
	fmt.Println("SUCCEEDED:", got)
}
