// Package quota has Workers use up their workspaces' disk: what the kernel
// refuses, what is measured, and how one might get round that.
package quota
