package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// resultCommands take a workspace's results out.
func (a *app) resultCommands() []*cobra.Command {
	return []*cobra.Command{a.wsDiff(), a.wsStatus(), a.wsCommits(), a.wsDirectories(), a.wsExport(), a.wsCollect()}
}

func (a *app) wsDiff() *cobra.Command {
	var repo string
	var stat bool
	var most int64
	c := &cobra.Command{
		Use: "diff ID", Short: "Print what a workspace changed, as a patch",
		Long: `Print how the files of a workspace differ from the commit that it was made of,
as a patch that git apply takes. All files that are not ignored count, whether
committed, staged or neither. Git runs in a sandbox on the workspace, mounted
read-only; no setting of the workspace's takes effect.`,
		Example: "  yoi ws diff ws-0123456789abcdef\n  yoi ws diff --stat ws-0123456789abcdef\n  yoi ws diff --json ws-0123456789abcdef",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			id := policy.AllocationID(argv[0])
			return a.with(cmd.Context(), func(s runtime.Service) error {
				if !stat && !a.json {
					_, err := s.ExportWorkspace(cmd.Context(), id, runtime.ExportRequest{Format: runtime.ExportPatch, RepositoryID: policy.RepositoryID(repo), MaxBytes: most}, a.plainOutput())
					return err
				}
				rep, err := s.DiffWorkspace(cmd.Context(), id, runtime.ResultRequest{RepositoryID: policy.RepositoryID(repo)})
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(rep)
				}
				return a.showStat(rep)
			})
		},
	}
	fl := c.Flags()
	repositoryFlag(c, &repo)
	fl.BoolVar(&stat, "stat", false, "print files and numbers of lines only")
	fl.Int64Var(&most, "max-bytes", 0, "fail if the patch is larger than `N` bytes (default 1 GiB)")
	return c
}

func repositoryFlag(c *cobra.Command, repo *string) {
	c.Flags().StringVar(repo, "repository", "", "this repository `ID` (default: the workspace's only one)")
}

func (a *app) showStat(rep runtime.DiffReport) error {
	var rows [][]string
	for _, r := range rep.Repositories {
		for _, f := range r.Files {
			lines := fmt.Sprintf("+%d -%d", f.Additions, f.Deletions)
			if f.Binary {
				lines = "binary"
			}
			path := f.Path
			if f.OldPath != "" {
				path = f.OldPath + " -> " + f.Path
			}
			rows = append(rows, []string{string(r.RepositoryID), f.Status, lines, path})
		}
	}
	if err := a.table([]string{"REPOSITORY", "STATUS", "LINES", "PATH"}, rows); err != nil {
		return err
	}
	for _, r := range rep.Repositories {
		fmt.Fprintf(a.stdout, "%s: %s, +%d -%d\n", r.RepositoryID, count(r.FileCount, "file"), r.Additions, r.Deletions)
		if r.Partial {
			fmt.Fprintf(a.stderr, "yoi: warning: some files of %s cannot be read and count as unchanged\n", r.RepositoryID)
		}
	}
	return nil
}

func (a *app) wsStatus() *cobra.Command {
	var repo string
	c := &cobra.Command{
		Use: "status ID", Short: "Print git status of a workspace", Example: "  yoi ws status ws-0123456789abcdef",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			return a.with(cmd.Context(), func(s runtime.Service) error {
				rep, err := s.StatusWorkspace(cmd.Context(), policy.AllocationID(argv[0]), runtime.ResultRequest{RepositoryID: policy.RepositoryID(repo)})
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(rep)
				}
				for _, r := range rep.Repositories {
					where := "detached at " + short(r.Head)
					if r.Branch != "" {
						where = "on " + r.Branch
					}
					fmt.Fprintf(a.stdout, "%s: %s, %s not collected; %d staged, %d unstaged, %d untracked, %d conflicted\n",
						r.RepositoryID, policy.Printable(where), count(r.CommitCount, "commit"), r.Staged, r.Unstaged, r.Untracked, r.Conflicted)
					for _, e := range r.Entries {
						fmt.Fprintf(a.stdout, "%s%s %s\n", e.Index, e.Worktree, policy.Printable(e.Path))
					}
				}
				return nil
			})
		},
	}
	repositoryFlag(c, &repo)
	return c
}

func (a *app) wsCommits() *cobra.Command {
	var req runtime.CommitsRequest
	var repo string
	c := &cobra.Command{
		Use: "commits ID", Short: "List the commits made in a workspace that nobody has collected", Example: "  yoi ws commits ws-0123456789abcdef",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			req.RepositoryID = policy.RepositoryID(repo)
			return a.with(cmd.Context(), func(s runtime.Service) error {
				rep, err := s.WorkspaceCommits(cmd.Context(), policy.AllocationID(argv[0]), req)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(rep)
				}
				var rows [][]string
				for _, r := range rep.Repositories {
					for _, v := range r.Commits {
						rows = append(rows, []string{string(r.RepositoryID), short(v.ID), v.AuthorName, ago(v.CommittedAt), v.Subject})
					}
				}
				return a.table([]string{"REPOSITORY", "COMMIT", "AUTHOR", "COMMITTED", "SUBJECT"}, rows)
			})
		},
	}
	repositoryFlag(c, &repo)
	c.Flags().IntVar(&req.Limit, "limit", 0, "at most `N` of each repository (default 100)")
	return c
}

func (a *app) wsExport() *cobra.Command {
	var repo, file string
	var patch, bundle, archive bool
	var most int64
	c := &cobra.Command{
		Use: "export ID", Short: "Write a workspace's results as a patch, a git bundle or a tar archive",
		Long: `Write a workspace's results to standard output or a file: with --patch what
git apply takes, with --bundle its commits for git fetch, with --tar its files that
are not ignored. A file is written whole or not at all.`,
		Example: "  yoi ws export --patch -o work.patch ws-0123456789abcdef\n  yoi ws export --bundle -o work.bundle ws-0123456789abcdef\n  yoi ws export --tar ws-0123456789abcdef > work.tar",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			req := runtime.ExportRequest{RepositoryID: policy.RepositoryID(repo), MaxBytes: most}
			chosen := 0
			for f, on := range map[runtime.ExportFormat]bool{runtime.ExportPatch: patch, runtime.ExportBundle: bundle, runtime.ExportTar: archive} {
				if on {
					req.Format = f
					chosen++
				}
			}
			if chosen != 1 {
				return usageError{errors.New("say one of --patch, --bundle and --tar")}
			}
			return a.with(cmd.Context(), func(s runtime.Service) error {
				export := func(w io.Writer) (int64, error) {
					return s.ExportWorkspace(cmd.Context(), policy.AllocationID(argv[0]), req, w)
				}
				return a.deliver(file, req.Format, export)
			})
		},
	}
	fl := c.Flags()
	repositoryFlag(c, &repo)
	fl.BoolVar(&patch, "patch", false, "the changes, for git apply")
	fl.BoolVar(&bundle, "bundle", false, "the commits, for git fetch")
	fl.BoolVar(&archive, "tar", false, "the files that are not ignored")
	fl.StringVarP(&file, "output", "o", "", "write to `FILE`, which must not exist")
	fl.Int64Var(&most, "max-bytes", 0, "fail if it is larger than `N` bytes (default 1 GiB)")
	return c
}

// deliver writes an export to a file, or to standard output.
func (a *app) deliver(file string, format runtime.ExportFormat, export func(io.Writer) (int64, error)) error {
	if file == "" || file == "-" {
		if format != runtime.ExportPatch && term.IsTerminal(int(a.stdout.Fd())) {
			return usageError{fmt.Errorf("a %s is not for a terminal: name a file with -o", format)}
		}
		_, err := export(a.plainOutput())
		return noRoom("standard output", err)
	}
	n, err := writeWhole(file, export)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(map[string]any{"file": file, "format": format, "bytes": n})
	}
	fmt.Fprintf(a.stdout, "%s %s\n", file, size(n))
	return nil
}

// writeWhole makes a file that must not exist, whole or not at all.
func writeWhole(name string, write func(io.Writer) (int64, error)) (n int64, err error) {
	fail := func(err error) error {
		if full := noRoom(policy.Printable(name), err); full != err {
			return full
		}
		return policy.Errorf(policy.CodeBadRequest, "yoi.export", "%s cannot be written", policy.Printable(name)).
			WithHint("Name a file that does not exist, in a directory that you may write to.").Because(err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(name), ".yoi-export-")
	if err != nil {
		return 0, fail(err)
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	if n, err = write(tmp); err != nil {
		return n, noRoom(policy.Printable(name), err)
	}
	if err = tmp.Sync(); err == nil {
		err = os.Link(tmp.Name(), name) // unlike rename(2) it replaces nothing
	}
	if err != nil {
		return n, fail(err)
	}
	return n, nil
}

// noRoom says so of an output whose file system is full; other errors it returns.
func noRoom(what string, err error) error {
	const hint = "Make room, or name a file on another file system."
	switch {
	case errors.Is(err, policy.CodeDiskFull), errors.Is(err, policy.CodeQuotaExceeded):
	case errors.Is(err, syscall.ENOSPC):
		return policy.Errorf(policy.CodeDiskFull, "yoi.export", "%s cannot be written: its disk is full", what).WithHint(hint).Because(err)
	case errors.Is(err, syscall.EDQUOT):
		return policy.Errorf(policy.CodeQuotaExceeded, "yoi.export", "%s cannot be written: a disk quota is used up", what).WithHint(hint).Because(err)
	}
	return err
}

// plainOutput is standard output, for what a workspace may have made up: to a
// terminal go no control characters.
func (a *app) plainOutput() io.Writer {
	a.progress.clear()
	if term.IsTerminal(int(a.stdout.Fd())) {
		return &tame{w: a.stdout}
	}
	return a.stdout
}

// tame replaces control characters other than newline and tab, and what is no
// UTF-8.
type tame struct {
	w    io.Writer
	part []byte // of a character that goes on in the next write
}

func (t *tame) Write(b []byte) (int, error) {
	var out strings.Builder
	rest := append(t.part, b...)
	for len(rest) > 0 && utf8.FullRune(rest) {
		c, n := utf8.DecodeRune(rest)
		switch {
		case c == utf8.RuneError && n == 1:
			fmt.Fprintf(&out, `\x%02x`, rest[0])
		case c == '\n' || c == '\t' || !unicode.IsControl(c):
			out.WriteRune(c)
		default:
			fmt.Fprintf(&out, `\u%04x`, c)
		}
		rest = rest[n:]
	}
	t.part = append([]byte(nil), rest...)
	if _, err := io.WriteString(t.w, out.String()); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (a *app) wsCollect() *cobra.Command {
	var req runtime.CollectRequest
	var repo string
	c := &cobra.Command{
		Use: "collect ID --as NAME", Short: "Take a workspace's commits into the repository cache, under a name",
		Long: `Take the commits that a workspace made into the repository cache, where they
outlive it under a name. Git checks each object (fsck); no configuration, hook or
attribute of the workspace takes effect. A workspace is made of them with
REPOSITORY@collected:NAME, and yoi repo export writes them as a git bundle.

A name that is taken moves forward only, unless --force is given.`,
		Example: "  yoi ws collect --as fix/123 ws-0123456789abcdef\n  yoi ws collect --as fix/123 --uncommitted --force ws-0123456789abcdef",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			if req.As == "" {
				return usageError{errors.New("--as NAME is missing")}
			}
			req.RepositoryID = policy.RepositoryID(repo)
			return a.with(cmd.Context(), func(s runtime.Service) error {
				rec, err := s.CollectWorkspace(cmd.Context(), policy.AllocationID(argv[0]), req)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(rec)
				}
				fmt.Fprintf(a.stdout, "%s %s@%s: %s, %s\n", rec.CommitID, rec.RepositoryID, rec.Selector, count(rec.Commits, "commit"), size(rec.Bytes))
				return nil
			})
		},
	}
	fl := c.Flags()
	repositoryFlag(c, &repo)
	fl.StringVar(&req.As, "as", "", "the `NAME`, like a branch's")
	fl.StringVar(&req.Revision, "rev", "", "which commit: a `REVISION` in the workspace (default HEAD)")
	fl.BoolVar(&req.Uncommitted, "uncommitted", false, "make a commit of what is not committed first")
	fl.BoolVar(&req.Force, "force", false, "let the name leave commits behind that it meant before")
	fl.Int64Var(&req.MaxBytes, "max-bytes", 0, "fail if the commits are larger than `N` bytes (default 1 GiB)")
	return c
}

func (a *app) repoCollected() *cobra.Command {
	return &cobra.Command{
		Use: "collected REPOSITORY", Short: "List the commits that were collected from workspaces", Example: "  yoi repo collected app",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			return a.with(cmd.Context(), func(s runtime.Service) error {
				list, err := s.ListCollected(cmd.Context(), policy.RepositoryID(argv[0]))
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(map[string]any{"items": list})
				}
				rows := make([][]string, 0, len(list))
				for _, c := range list {
					rows = append(rows, []string{c.Name, short(c.CommitID), fmt.Sprint(c.Commits), size(c.Bytes), ago(c.CollectedAt), string(c.AllocationID)})
				}
				return a.table([]string{"NAME", "COMMIT", "COMMITS", "SIZE", "COLLECTED", "WORKSPACE"}, rows)
			})
		},
	}
}

func (a *app) repoExport() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use: "export REPOSITORY NAME", Short: "Write collected commits as a git bundle, for git fetch",
		Example: "  yoi repo export -o fix.bundle app fix/123\n  yoi repo export app fix/123 > fix.bundle",
		Args:    args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			return a.with(cmd.Context(), func(s runtime.Service) error {
				return a.deliver(file, runtime.ExportBundle, func(w io.Writer) (int64, error) {
					return s.ExportCollected(cmd.Context(), policy.RepositoryID(argv[0]), runtime.CollectedRequest{Name: argv[1]}, w)
				})
			})
		},
	}
	c.Flags().StringVarP(&file, "output", "o", "", "write to `FILE`, which must not exist")
	return c
}

func (a *app) repoDrop() *cobra.Command {
	return &cobra.Command{
		Use: "drop REPOSITORY NAME", Short: "Forget a name for collected commits", Example: "  yoi repo drop app fix/123",
		Args: args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			return a.with(cmd.Context(), func(s runtime.Service) error {
				return s.DropCollected(cmd.Context(), policy.RepositoryID(argv[0]), runtime.CollectedRequest{Name: argv[1]})
			})
		},
	}
}
