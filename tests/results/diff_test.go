package results

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// changes is all kinds of them, some of them hidden from a lax git: a same-size
// edit with its mtime put back under a configuration that asks for lax checks,
// and one behind an index flag. Names differ by case or by how Unicode composes a
// letter, and one would rename an operator's window.
const changes = `
	git config core.checkStat minimal; git config core.trustctime false
	sed -i s/Changed/cHANGED/ README.md; touch -d @1700000200 README.md; git update-index --refresh -q || :
	git update-index --assume-unchanged Makefile; echo more >>Makefile
	git mv src/util.c src/tool.c && git commit -q -m "move it"
	chmod -x run.sh; rm link; ln -s /etc/passwd link; rm src/main.c
	printf 'a\0b\377' >binary; mkdir -p deep/er; echo x >"deep/er/new file"; echo t >"$(printf 'tab\there\377')"
	echo skipped >>.gitignore; echo no >skipped; mkfifo pipe; mkdir empty
	python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
	echo l >readme.md; echo c >"$(printf '\303\251')"; echo d >"$(printf 'e\314\201')"; echo e >"$(printf '\033]0;x\007')"
`

// TestDiff applies the patch to a clone and wants the tree that the report names.
func TestDiff(t *testing.T) {
	eachCaller(t, func(t *testing.T, c caller, s policy.StrategyName) {
		id := c.create(t, s)
		if patch := c.OK(t, "ws", "diff", string(id)); patch != "" {
			t.Errorf("an untouched workspace differs:\n%s", patch)
		}
		c.work(t, id, changes)
		// A live Worker is no hindrance.
		live := c.start(t, id, "sleep 30")
		patch := c.OK(t, "ws", "diff", string(id))
		var rep runtime.DiffReport
		c.json(t, &rep, "ws", "diff", string(id))
		c.OK(t, "worker", "stop", string(live))
		clone := c.clone(t)
		clone.Git(t, "apply", "--index", file(t, patch))
		if got := clone.Git(t, "write-tree"); len(rep.Repositories) != 1 || rep.Repositories[0].Tree != got {
			t.Errorf("the patch makes the tree %s, the report has %+v", got, rep)
		}
		checkFiles(t, rep.Repositories[0])
		tar := file(t, c.OK(t, "ws", "export", "--tar", string(id)))
		out := t.TempDir()
		rig.Command(t, "tar", "-xf", tar, "-C", out, "--no-same-owner")
		rig.Command(t, "cp", "-a", filepath.Join(clone.Dir, ".git"), out)
		if left := rig.Command(t, "git", "-C", out, "diff", "--stat") + rig.Command(t, "git", "-C", out, "ls-files", "--others"); left != "" {
			t.Errorf("the archive differs from the patch:\n%s", left)
		}
		c.Run(t, "ws", "export", "--patch", "--max-bytes", "100", string(id)).Refused(t, 1, policy.CodeResultTooLarge)
		c.discard(t, id)
	})
}

func checkFiles(t *testing.T, d runtime.RepositoryDiff) {
	t.Helper()
	var got []string
	for _, f := range d.Files {
		got = append(got, strings.TrimSpace(f.Status+" "+f.OldMode+" "+f.NewMode+" "+f.Path+" "+f.OldPath))
	}
	slices.Sort(got)
	want := []string{
		`added 000000 100644 "\033]0;x\007"`, `added 000000 100644 "tab\there\377"`, "added 000000 100644 .gitignore", "added 000000 100644 binary", "added 000000 100644 deep/er/new file",
		"added 000000 100644 e\u0301", "added 000000 100644 readme.md", "added 000000 100644 \u00e9",
		"deleted 100644 000000 src/main.c", "modified 100644 100644 Makefile", "modified 100644 100644 README.md", "modified 100755 100644 run.sh",
		"modified 120000 120000 link", "renamed 100644 100644 src/tool.c src/util.c",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the files are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if d.FileCount != len(want) || d.Partial {
		t.Errorf("%d files, partial %v", d.FileCount, d.Partial)
	}
}

// TestStatusAndCommits are the Worker's own view, and only its own commits.
func TestStatusAndCommits(t *testing.T) {
	kindsOfCallers(t, func(t *testing.T, c caller, s policy.StrategyName) {
		id := c.create(t, s)
		var com runtime.CommitsReport
		c.json(t, &com, "ws", "commits", string(id))
		if r := com.Repositories[0]; r.CommitCount != 0 || len(r.Commits) != 0 {
			t.Errorf("commits of nobody's: %+v", com)
		}
		said := c.work(t, id, `
			echo 1 >one; git add one; git commit -q -m 'one "quoted"'
			git stash list >/dev/null; echo 2 >two; git add two; git commit -q --author 'B <b@example.com>' -m two
			git checkout -q --detach; echo 3 >three; git add three; git commit -q -m lost; lost=$(git rev-parse HEAD); git checkout -q work
			echo s >staged; git add staged; echo u >>README.md; echo n >untracked
			git rev-parse HEAD; echo $lost`)
		var st runtime.StatusReport
		c.json(t, &st, "ws", "status", string(id))
		got := st.Repositories[0]
		if got.Head != lines(said)[0] || got.Branch != "work" || got.CommitCount != 3 || got.Staged != 1 || got.Unstaged != 1 || got.Untracked != 1 || len(got.Entries) != 3 {
			t.Errorf("status %+v", got)
		}
		c.json(t, &com, "ws", "commits", string(id))
		ids := map[string]runtime.WorkspaceCommit{}
		for _, v := range com.Repositories[0].Commits {
			ids[v.ID] = v
		}
		if v := ids[lines(said)[0]]; len(ids) != 3 || v.AuthorName != "B" || v.Subject != "two" || len(v.Parents) != 1 || ids[lines(said)[1]].Subject != "lost" {
			t.Errorf("commits %+v", com)
		}
		bundle := filepath.Join(c.place.Dir, string(id)+".bundle")
		c.OK(t, "ws", "export", "--bundle", "-o", bundle, string(id))
		c.Run(t, "ws", "export", "--bundle", "-o", bundle, string(id)).Refused(t, 1, policy.CodeBadRequest)
		clone := c.clone(t)
		clone.Git(t, "fetch", "-q", bundle, "work:fetched")
		if head := clone.Git(t, "rev-parse", "fetched"); head != got.Head {
			t.Errorf("the bundle's branch is %s, the workspace's %s", head, got.Head)
		}
		if err := os.Remove(bundle); err != nil {
			t.Error(err)
		}
		c.discard(t, id)
	})
}

// TestDiffOfFew: an overlay's upper layer tells where to look, elsewhere stat data
// does. What git finds there is what it finds by looking at every file, which a pipe
// in the tree makes it do.
func TestDiffOfFew(t *testing.T) {
	testenv.Root(t)
	for _, on := range []struct {
		fs       string
		strategy policy.StrategyName
	}{{"disk", policy.StrategyOverlay}, {"disk", policy.StrategyCopy}, {"btrfs", policy.StrategyBtrfsSnapshot}} {
		t.Run(string(on.strategy), func(t *testing.T) { diffOfFew(t, on.fs, on.strategy) })
	}
}

func diffOfFew(t *testing.T, fs string, strategy policy.StrategyName) {
	p := rig.NewPlace(t, fs, 0)
	// Line ends that are converted nowhere, since they were committed before that was
	// asked for (gitattributes(5), "text").
	source := testenv.Commit(t, repository(t), "line ends", map[string]*testenv.Entry{
		".gitattributes": {Data: "dos.txt text=auto\n"}, "dos.txt": {Data: "a\r\nb\r\n"}, "src/main.cc": {Data: "beside main.c\n"},
	})
	c := caller{Yoi: p.Yoi(t), source: source, place: p}
	c.repo = p.Give(t, c.source)
	c.OK(t, "repo", "add", "--id", "small", c.repo.Dir)
	for name, script := range map[string]string{
		"line ends":  `printf 'c\r\n' >>dos.txt`,
		"files":      `echo x >>README.md; chmod -x run.sh; echo n >src/n; rm src/main.c; mv src/util.c "a b"; printf 'z' >"$(printf 'n\nl\377')"`,
		"same size":  `sed -i s/Changed/cHANGED/ README.md; touch -d @1700000200 README.md`,
		"ignored":    `printf '*.o\nREADME.md\nout/\n' >.gitignore; echo x >>README.md; echo o >a.o; mkdir out; echo o >out/f; echo k >src/k`,
		"directory":  `rm -r src`,
		"renamed":    `mv src lib`,
		"opaque":     `rm -r src; mkdir src; echo n >src/new`,
		"to a link":  `rm -r src; ln -s /etc src`,
		"to a file":  `rm -r src; echo f >src`,
		"to a tree":  `rm README.md; mkdir README.md; echo f >README.md/f`,
		"repository": `mkdir nested; cd nested; git init -q; git -c user.name=x -c user.email=x@example.com commit -q --allow-empty -m x`,
		"committed":  `echo x >>README.md; git commit -qam x; rm README.md; git commit -qam y`,
	} {
		t.Run(name, func(t *testing.T) {
			id := c.create(t, strategy)
			c.work(t, id, script)
			few := c.OK(t, "ws", "diff", string(id))
			if name == "line ends" && !strings.HasSuffix(few, "\n b\r\n+c\r\n") {
				t.Errorf("of a line that was added git finds\n%q", few)
			}
			c.work(t, id, "mkdir -p every; mkfifo every/file")
			all := c.Run(t, "ws", "diff", string(id))
			if name == "repository" { // a pipe beside a repository is refused
				all.Refused(t, 1, policy.CodeWorkspaceUnreadable)
			} else if few == "" || few != all.Want(t, 0).Stdout {
				t.Errorf("where it was told to look git finds\n%s\neverywhere\n%s", few, all.Stdout)
			}
			c.discard(t, id)
		})
	}
	rig.Clean(t, c.Root)
}
