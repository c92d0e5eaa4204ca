package gitcache

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"strconv"
	"strings"

	"yoi.dev/yoi-runtime/policy"
)

const opExport = "gitcache.export"

// TreeObjects lists a point's commit and the objects of its tree in the order
// of package snapshot: the commit, trees in preorder, blobs by their first path.
func (c *Cache) TreeObjects(ctx context.Context, p policy.RepositoryPoint) ([]string, error) {
	r, err := c.repo(p.RepositoryID)
	if err != nil {
		return nil, err
	}
	out, err := c.run(ctx, r.bareCommand("ls-tree", "-r", "-t", "-z", "--full-tree", p.TreeID))
	if err != nil {
		return nil, gitFailure(opExport, "the tree could not be read", err)
	}
	trees, blobs := []string{p.CommitID, p.TreeID}, []string(nil)
	seen := map[string]bool{p.TreeID: true}
	for line := range strings.SplitSeq(string(out), "\x00") {
		head, _, _ := strings.Cut(line, "\t") // mode SP type SP oid TAB path
		f := strings.Split(head, " ")
		if len(f) != 3 || seen[f[2]] {
			continue
		}
		switch f[1] {
		case "tree":
			trees = append(trees, f[2])
		case "blob":
			blobs = append(blobs, f[2])
		default:
			continue // a submodule's commit is another repository's
		}
		seen[f[2]] = true
	}
	return append(trees, blobs...), nil
}

// ReadObjects calls each with every object's size and content, in order.
func (c *Cache) ReadObjects(ctx context.Context, id policy.RepositoryID, oids []string, each func(size int64, content io.Reader) error) error {
	r, err := c.repo(id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	from, to := io.Pipe()
	cmd := r.bareCommand("cat-file", "--batch=%(objectname) %(objectsize)")
	cmd.stdin = []byte(strings.Join(oids, "\n") + "\n")
	cmd.output = to
	done := make(chan error, 1)
	go func() {
		_, err := c.run(ctx, cmd)
		to.CloseWithError(err)
		done <- err
	}()
	err = readBatch(bufio.NewReaderSize(from, 256<<10), oids, each)
	if err != nil {
		cancel() // or git would wait for us
	}
	from.CloseWithError(err)
	if gitErr := <-done; err == nil && gitErr != nil {
		err = gitErr
	}
	if err != nil {
		return gitFailure(opExport, "the objects could not be read", err)
	}
	return nil
}

// readBatch reads git-cat-file(1)'s batch output.
func readBatch(in *bufio.Reader, oids []string, each func(int64, io.Reader) error) error {
	for _, oid := range oids {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		name, rest, _ := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
		size, err := strconv.ParseInt(string(rest), 10, 64)
		if err != nil || string(name) != oid {
			return policy.Errorf(policy.CodeCacheCorrupt, opExport, "the cache has not every object of the tree").With("object", oid)
		}
		content := io.LimitReader(in, size)
		if err := each(size, content); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, content); err != nil {
			return err
		}
		if _, err := in.Discard(1); err != nil {
			return err
		}
	}
	return nil
}
