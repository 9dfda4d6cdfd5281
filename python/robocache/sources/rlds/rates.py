"""How often the robots of Open X Embodiment acted, in Hz. RLDS does not say; these are the rates others use.

Tables disagree on dobbe (30 or 3.75); ``rate_hz`` overrides any of them.
"""

from __future__ import annotations

CONVERTED = "_converted_externally_to_rlds"
_BY_RATE: dict[float, str] = {
    1: "robo_net uiuc_d3field",
    2: "ucsd_kitchen_dataset",
    3: "fractal20220817_data nyu_door_opening_surprising_effectiveness nyu_rot_dataset nyu_franka_play_dataset "
    "ucsd_pick_and_place_dataset berkeley_gnm_recon",
    5: "bridge bridge_dataset bridgev2 berkeley_autolab_ur5 berkeley_mvp dlr_edan_shared_control stanford_robocook "
    "cmu_play_fusion berkeley_gnm_cory_hall roboset",
    10: "kuka bc_z language_table jaco_play berkeley_cable_routing columbia_cairlab_pusht_real "
    "stanford_hydra_dataset furniture_bench_dataset utokyo_pr2_opening_fridge "
    "utokyo_pr2_tabletop_manipulation utokyo_xarm_pick_and_place utokyo_xarm_bimanual kaist_nonprehensile "
    "tokyo_u_lsmo dlr_sara_pour dlr_sara_grid_clamp imperialcollege_sawyer_wrist_cam berkeley_fanuc_manipulation "
    "cmu_stretch berkeley_gnm_sac_son roboturk fmb rh20t",
    12.5: "asu_table_top",
    15: "taco_play droid",
    20: "viola utaustin_mutex stanford_kuka_multimodal_dataset austin_buds_dataset maniskill_dataset "
    "austin_sailor_dataset austin_sirius_dataset iamlab_cmu_pickup_insert "
    "libero_10_no_noops libero_goal_no_noops libero_object_no_noops libero_spatial_no_noops",
    25: "agilex",
    30: "toto berkeley_rpt dobbe qut_dexterous_manpulation",
    50: "aloha_mobile aloha_static",
    66.6: "eth_agent_affordances",
}
OPEN_X_RATES_HZ: dict[str, float] = {name: rate for rate, names in _BY_RATE.items() for name in names.split()}


def open_x_rate(name: str) -> float | None:
    """The rate of a dataset by its TFDS name, with or without the suffix of converted ones."""
    return OPEN_X_RATES_HZ.get(name.removesuffix(CONVERTED))
