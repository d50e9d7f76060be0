# What the scripts of this folder share: the operators to take, and the options that name this CPU's profile. A script sources it
# before it changes its folder.
# shellcheck shell=bash disable=SC2034
source_folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
operator_folder=$(realpath "${OPERATOR_FOLDER:-$source_folder/bench/own/operators}")
operator_file() {
    echo "$operator_folder/$1.json"
}
read -ra operators <<<"${OPERATORS:-$(basename -s .json -a "$operator_folder"/*.json | tr '\n' ' ')}"
for operator in "${operators[@]}"; do
    if [[ ! -e $(operator_file "$operator") ]]; then
        echo "$(basename "$0"): there is no operator '$operator' in $operator_folder" >&2
        exit 1
    fi
done
device=()
if [[ -n ${DEVICE-} ]]; then
    device=(--device "$(realpath "$DEVICE")")
fi
# shellcheck source=bench/search/masks.sh
source "$source_folder/bench/search/masks.sh"
# shellcheck source=bench/search/time_limit.sh
source "$source_folder/bench/search/time_limit.sh"
