# Tuning and held-out masks of the searches, as `distile tune` draws them: the same densities, other seeds.
# shellcheck shell=bash disable=SC2034
masks=() held_out=()
for density in 0.02 0.05 0.1 0.15 0.2 0.3 0.4 0.5 0.65 0.8; do
    for seed in 1 2 3; do
        masks+=("blob:$density:$seed")
        held_out+=("blob:$density:90$seed")
    done
    masks+=("random:$density:1")
    held_out+=("random:$density:901")
done
