package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"yoi.dev/yoi-runtime/gitcache/patch"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

func (a *app) patchCommand() *cobra.Command {
	return groupCommand("patch", "Store git diffs that workspaces are made with", "  yoi patch add wip.patch\n  yoi patch list",
		a.patchAdd(), a.patchList(), a.patchRemove())
}

func (a *app) patchAdd() *cobra.Command {
	return &cobra.Command{
		Use: "add FILE", Short: "Store a patch under its digest; - is stdin",
		Long: `Check the output of git diff --binary and store it under the digest of its
content, which is printed. Storing it again is no error.`,
		Example: "  yoi patch add wip.patch\n  yoi patch add --json -",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			content, err := readPatchFile(argv[0])
			if err != nil {
				return err
			}
			return a.with(cmd.Context(), func(s runtime.Service) error {
				p, err := s.AddPatch(cmd.Context(), runtime.AddPatchRequest{Content: content})
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(p)
				}
				fmt.Fprintln(a.stdout, p.Digest)
				return nil
			})
		},
	}
}

func (a *app) patchList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the stored patches, newest first", Example: "  yoi patch list --json", Aliases: []string{"ls"},
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(s runtime.Service) error {
				list, err := s.ListPatches(cmd.Context())
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(list)
				}
				rows := make([][]string, 0, len(list))
				for _, p := range list {
					rows = append(rows, []string{string(p.Digest), size(p.Bytes), ago(p.AddedAt), ago(p.UsedAt)})
				}
				return a.table([]string{"DIGEST", "SIZE", "ADDED", "USED"}, rows)
			})
		},
	}
}

func (a *app) patchRemove() *cobra.Command {
	return &cobra.Command{
		Use: "remove DIGEST", Short: "Forget a stored patch", Example: "  yoi patch remove sha256:…", Aliases: []string{"rm"},
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			return a.with(cmd.Context(), func(s runtime.Service) error {
				if err := s.RemovePatch(cmd.Context(), policy.PatchDigest(argv[0])); err != nil {
					return err
				}
				return a.removed(argv[0])
			})
		},
	}
}

// patchArgument reads --patch: a digest, or the content of a file.
func patchArgument(s string) (policy.PatchDigest, []byte, error) {
	if strings.HasPrefix(s, "sha256:") {
		d := policy.PatchDigest(s)
		_, err := d.Hex()
		return d, nil, err
	}
	content, err := readPatchFile(s)
	return "", content, err
}

func readPatchFile(name string) ([]byte, error) {
	const op = "yoi.patch"
	f := os.Stdin
	if name != "-" {
		var err error
		if f, err = os.Open(name); err != nil {
			return nil, policy.Errorf(policy.CodePatchInvalid, op, "the patch file cannot be read: %s", policy.Printable(reason(err))).
				WithHint("Name a file that exists.").Because(err)
		}
		defer f.Close()
	}
	b, err := io.ReadAll(io.LimitReader(f, patch.MaxBytes+1))
	if err != nil {
		return nil, policy.Errorf(policy.CodePatchInvalid, op, "the patch file cannot be read: %s", policy.Printable(reason(err))).Because(err)
	}
	if len(b) == 0 {
		return nil, policy.Errorf(policy.CodePatchInvalid, op, "the patch is empty").WithHint("Nothing has changed? git status.")
	}
	return b, nil
}

// reason is the errno's text alone.
func reason(err error) string {
	var p *os.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return err.Error()
}

// addPatch stores what --patch names, for the first repository.
func (f createFlags) addPatch(ctx context.Context, s runtime.Service, req *runtime.CreateWorkspaceRequest) error {
	if f.patch == "" {
		return nil
	}
	digest, content, err := patchArgument(f.patch)
	if err != nil {
		return err
	}
	if content != nil {
		p, err := s.AddPatch(ctx, runtime.AddPatchRequest{Content: content})
		if err != nil {
			return err
		}
		digest = p.Digest
	}
	if req.DirtyState == "" {
		req.DirtyState = policy.PatchArtifact
	}
	req.Repositories[0].Patch = digest
	return nil
}
