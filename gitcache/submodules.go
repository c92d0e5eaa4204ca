package gitcache

import (
	"os"
)

// Submodules returns the paths of the tree's submodules, from its index.
func (p *Pristine) Submodules() ([]string, error) {
	top, err := os.Open(p.r.treePath(p.Key))
	if err != nil {
		return nil, diskError(opPristine, "the tree cannot be opened", err)
	}
	defer top.Close()
	x, err := readIndex(top)
	if err != nil {
		return nil, gitFailure(opPristine, "the index could not be read", err)
	}
	var out []string
	for i := range x.Len() {
		if e := x.Entry(i); e.IsGitlink() {
			out = append(out, string(e.Path))
		}
	}
	return out, nil
}
