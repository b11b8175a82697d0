// Package stats compares two groups of measurements, and many pairs of groups.
//
// Words and sources:
//
//   - Welch's t-test does not assume equal variances (Welch, Biometrika 34, 1947).
//     Its confidence interval is that of the difference of the means.
//   - The Mann-Whitney U test asks whether one group tends to be larger, and assumes
//     nothing about distributions (Annals of Mathematical Statistics 18, 1947). It is
//     exact where both groups have at most 8 values or so and no two are equal;
//     otherwise the normal approximation, corrected for ties and continuity.
//   - Effect size: Hedges' g is the difference of the means in standard deviations,
//     corrected for small groups (Journal of Educational Statistics 6, 1981). Cliff's
//     delta is how much more often a value of the one group is the larger, -1 to 1.
//   - Among many comparisons some are significant by chance. Holm's correction keeps
//     the chance of even one such; Benjamini and Hochberg's keeps their share.
//
// All tests are two-sided. The numbers are those of scipy.stats; tests hold that.
package stats
