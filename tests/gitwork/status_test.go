package gitwork

import (
	_ "embed"
	"regexp"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

//go:embed testdata/status.sh
var statusScript string

// TestFirstStatusReadsNoContent counts opens of tracked files, not time: the
// index of a fresh workspace is right, so git has no reason to look into one.
func TestFirstStatusReadsNoContent(t *testing.T) {
	testenv.Root(t)
	rig.EachPlace(t, func(t *testing.T, p rig.Place) {
		repo := p.Give(t, testenv.RepoFiles(t, 400))
		yoi := p.Yoi(t)
		for _, w := range p.Ways(t, yoi, repo) {
			t.Run(w.String(), func(t *testing.T) {
				out := yoi.OK(t, w.Run("--seccomp", "debug", "--", "sh", "-c", statusScript)...)
				traces := traceSections(t, out)
				if reads := contentReads(traces["first"]); len(reads) != 0 {
					t.Errorf("the first status read %d files, among them %s", len(reads), reads[0])
				}
				// It lists no directory either, but where the index does not know of all files;
				// once the index is of git's own making there, it may.
				if lists := listings(traces["first"]); len(lists) != 0 && w.Strategy != policy.StrategyGitSparse {
					t.Errorf("the first status listed %d directories, among them %s", len(lists), lists[0])
				}
				// The count can see a read.
				if reads := contentReads(traces["stale"]); len(reads) != 2 {
					t.Errorf("two stale entries gave %d reads: %q", len(reads), reads)
				}
				if reads := contentReads(traces["again"]); len(reads) != 0 {
					t.Errorf("status after a refresh read %q", reads)
				}
			})
		}
		rig.Clean(t, yoi.Root)
	})
}

func traceSections(t *testing.T, out string) map[string]string {
	t.Helper()
	sections := map[string]string{}
	for part := range strings.SplitSeq("\n"+out, "\n== ") {
		if name, text, ok := strings.Cut(part, "\n"); ok {
			sections[name] = text
		}
	}
	if !strings.Contains(sections["first"], `.git/index"`) || len(sections) != 3 {
		t.Fatalf("the trace shows no git at work:\n%s", out)
	}
	return sections
}

// tracked matches a successful open or readlink of a file of testenv.RepoFiles.
var tracked = regexp.MustCompile(`"[^"]*file-\d+\.txt".*= \d`)

// listed matches a directory of testenv.RepoFiles that was opened; the top is always new
// where it is an overlay's.
var listed = regexp.MustCompile(`"d\d+/[^"]*", .*O_DIRECTORY.*= \d`)

func listings(trace string) []string { return matching(listed, trace) }

func contentReads(trace string) []string { return matching(tracked, trace) }

func matching(what *regexp.Regexp, trace string) []string {
	var found []string
	for line := range strings.Lines(trace) {
		if what.MatchString(line) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}
