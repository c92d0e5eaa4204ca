package gitcache

import "os"

// Submodules returns the paths of the submodules of a checked-out tree, from its
// index. No Worker may have had the tree yet.
func Submodules(tree *os.File) ([]string, error) {
	x, err := readIndex(tree)
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
